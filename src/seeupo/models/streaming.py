"""Build a model without weights and read these one at a time, for ranks that keep only a part of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from seeupo.errors import ModelError
from seeupo.models.config_check import read_config
from seeupo.models.loading import LoadedPolicy, adapter_folder, prepare
from seeupo.models.location import locate
from seeupo.models.packing.batching import Packing
from seeupo.models.precision import resolve_device


@dataclass(frozen=True)
class WeightStream:
    """A stored model that ranks read weight by weight. Arguments are those of `load_policy`.

    Attributes:
        packing: As found by the process that has loaded and checked the whole model.
    """

    name: str
    device: str
    dtype: str
    frozen: bool
    packing: Packing

    def policy(self) -> LoadedPolicy:
        """Return the policy with all weights on the meta device; buffers have their values."""
        path = locate(self.name)
        config = read_config(path)
        with weights_on_meta():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, attn_implementation="sdpa", dtype=torch.float32
            )
        if _file(path, "generation_config.json") is not None:
            model.generation_config = GenerationConfig.from_pretrained(path)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        compute_dtype = prepare(model, self.dtype, frozen=self.frozen)
        _move_buffers(model, resolve_device(self.device))
        return LoadedPolicy(model, tokenizer, self.packing, self.name, None, compute_dtype)

    def weights(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
        """Return an iterator over the stored weights of a model without adapters; each is read when its turn comes."""
        wanted = [name for name, _ in model.named_parameters()]
        return _read(stored_weights(self.name), wanted)


def can_stream(name: str, model: PreTrainedModel) -> bool:
    """Return whether the weights of a model that was loaded from `name` are stored as they are, one by one.

    Adapters that were merged, weights that transformers renames or joins, and the model `tiny` are not.
    """
    if name == "tiny" or adapter_folder(locate(name)) is not None or hasattr(model.config, "quantization_config"):
        return False
    return {parameter for parameter, _ in model.named_parameters()} <= stored_weights(name).keys()


def stored_weights(name: str) -> dict[str, str]:
    """Return the safetensors file of every stored weight."""
    path = locate(name)
    index, single = _file(path, SAFE_WEIGHTS_INDEX_NAME), _file(path, SAFE_WEIGHTS_NAME)
    if index is not None:
        files: dict[str, str] = json.loads(Path(index).read_text())["weight_map"]
        paths = {file: _file(path, file) for file in set(files.values())}
        if missing := sorted(file for file, stored in paths.items() if stored is None):
            raise ModelError(f"{path} has no {missing[0]}, which its index names; download or copy the model again")
        return {weight: str(paths[file]) for weight, file in files.items()}
    if single is None:
        return {}
    with safe_open(single, framework="pt") as tensors:
        return dict.fromkeys(tensors.keys(), single)


@contextmanager
def weights_on_meta() -> Iterator[None]:
    """Put parameters on the meta device as they are registered; buffers, which no file contains, are computed."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # a tied one is registered again, and stays the same
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _read(files: dict[str, str], wanted: list[str]) -> Iterator[tuple[str, Tensor]]:
    for file in sorted({files[name] for name in wanted}):
        with safe_open(file, framework="pt") as tensors:
            for name in wanted:
                if files[name] == file:
                    yield name, tensors.get_tensor(name)


def _file(path: str, name: str) -> str | None:
    """Return the path of a file of a model folder or hub id; None if there is none."""
    quiet = ("gated_repo", "missing_entries", "connection_errors")
    file: str | None = cached_file(path, name, **{f"_raise_exceptions_for_{kind}": False for kind in quiet})
    return file


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
