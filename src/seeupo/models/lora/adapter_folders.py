"""LoRA adapters in the folder format of peft, read as data: JSON and safetensors, and no code of peft.

adapter_config.json           name of the base model, rank, scale
adapter_model.safetensors     two matrices for each adapted layer
base/                         the base model, if it has no name by which it could be found again
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from seeupo.errors import ModelError
from seeupo.models.location import ADAPTER_CONFIG
from seeupo.utils.json_lines import parse_object
from seeupo.utils.text import one_line

WEIGHTS = "adapter_model.safetensors"
BASE = "base"
PREFIX = "base_model.model."
"""Prefix that peft gives to the names of all weights in the file."""
MAX_CONFIG_BYTES = 1_000_000
PLAIN_INITIALIZATIONS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the weights of the base model as they are."""
CHANGES_THE_MODEL = (
    "alpha_pattern",
    "layer_replication",
    "alora_invocation_tokens",
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "kasa_config",
    "monteclora_config",
)
"""Settings that change what an adapter computes, and that its weights alone do not show."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter.

    Attributes:
        base: Folder or name of the base model.
        rank, alpha: The output of the adapter is multiplied by alpha / rank.
        rank_stabilized: The factor is alpha / sqrt(rank) instead.
        layers: The matrices A (rank x inputs) and B (outputs x rank) of each adapted layer, by its name.
    """

    path: Path
    base: str
    rank: int
    alpha: float
    rank_stabilized: bool
    layers: Mapping[str, tuple[Tensor, Tensor]]

    def merge_into(self, model: PreTrainedModel) -> None:
        """Add the adapter to the weights of its base model."""
        linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
        shared = model.get_input_embeddings().weight
        for name, (a, b) in self.layers.items():
            layer = linear.get(name)
            if layer is None or layer.weight is shared or layer.weight.shape != (b.shape[0], a.shape[1]):
                raise ModelError(
                    f"{self.path}: the adapter of layer {shown(name)} does not fit the base {shown(self.base)}; "
                    "use the model that it was trained on"
                )
            rank = a.shape[0]
            scale = self.alpha / (math.sqrt(rank) if self.rank_stabilized else rank)
            layer.weight.data += scale * (b.to(layer.weight) @ a.to(layer.weight))

    @torch.no_grad()
    def copy_into(self, model: PreTrainedModel, name: str) -> None:
        """Set the adapter of this name in a model, which must adapt the same layers."""
        for layer, matrices in self.layers.items():
            for part, matrix in zip(("lora_A", "lora_B"), matrices, strict=True):
                parameter = model.get_parameter(f"{layer}.{part}.{name}.weight")
                if parameter.shape != matrix.shape:
                    raise ValueError(f"{self.path} does not fit its base model; use the model it was trained on")
                parameter.copy_(matrix)


def base_name(name_or_path: str) -> str:
    """Return the name of a base model to store with an adapter; a path with '..' becomes absolute."""
    path = PurePath(name_or_path)
    return str(Path(name_or_path).resolve()) if ".." in path.parts else name_or_path


def write_base_name(folder: Path, base: str | None) -> None:
    """Name the base model of an adapter folder that peft has written; None for no name."""
    settings = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = base
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def read_adapter(folder: Path, *, base: str | None = None) -> Adapter:
    """Read an adapter folder. Adapters that are more than two matrices per linear layer are refused.

    `base` is the base model if the folder does not say so.
    """
    settings = read_settings(folder / ADAPTER_CONFIG)
    if settings.get("peft_type") != "LORA":
        raise ModelError(
            f"{folder} is an adapter of type {shown(settings.get('peft_type'))}; expected LORA. {_MERGE_FIRST}"
        )
    unsupported = [name for name in CHANGES_THE_MODEL if settings.get(name)]
    if settings.get("init_lora_weights", True) not in PLAIN_INITIALIZATIONS:
        unsupported.append("init_lora_weights")
    if unsupported:
        raise ModelError(f"{folder}/{ADAPTER_CONFIG} sets {unsupported[0]}, which is not supported. {_MERGE_FIRST}")
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ModelError(
            f"{folder}/{ADAPTER_CONFIG} has r = {shown(rank)}, lora_alpha = {shown(alpha)}; expected numbers"
        )
    return Adapter(
        path=folder,
        base=base or find_base(folder, settings.get("base_model_name_or_path")),
        rank=rank,
        alpha=float(alpha),
        rank_stabilized=bool(settings.get("use_rslora")),
        layers=_layers(folder),
    )


_MERGE_FIRST = "Merge it into its base model with peft, and use the result."


def read_settings(file: Path) -> dict[str, Any]:
    """Return the JSON object in a small file."""
    try:
        if not file.is_file() or file.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"expected a file of at most {MAX_CONFIG_BYTES} bytes")
        return parse_object(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None


def find_base(folder: Path, name: object, file: str = ADAPTER_CONFIG, key: str = "base_model_name_or_path") -> str:
    """Return the base model that an adapter names: a folder within it, or a folder or name as the user would type it.

    A name cannot climb out of a directory, so that it means the same model wherever the adapter is moved.
    """
    edit = f"Name the base model in {folder}/{file} ({key})."
    if not isinstance(name, str) or not name.strip():
        raise ModelError(f"{folder} is an adapter that names no base model. {edit}")
    path = PurePath(name)
    if ".." in path.parts or name.startswith("~") or "://" in name or "\0" in name or len(name) > 1000:
        raise ModelError(
            f"{folder} is an adapter for {shown(name)}; expected the name of a model, or a folder without '..'. {edit}"
        )
    inside = folder / path
    if not path.is_absolute() and inside.is_dir():
        if not inside.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{folder} is an adapter for {shown(name)}, a link that leaves the folder. {edit}")
        return str(inside)
    return name


def _layers(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    file = folder / WEIGHTS
    if not file.is_file():
        raise ModelError(f"{folder} has no {WEIGHTS}; other weight formats can run code and are not loaded")
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from None
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, weight in weights.items():
        layer, _, part = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        if part not in ("lora_A", "lora_B") or weight.ndim != 2:
            raise ModelError(f"{file} contains {shown(name)}; expected LoRA matrices only. {_MERGE_FIRST}")
        pairs.setdefault(layer, {})[part] = weight
    for layer, pair in pairs.items():
        if len(pair) != 2 or pair["lora_A"].shape[0] != pair["lora_B"].shape[1]:
            raise ModelError(
                f"{file}: the matrices of layer {shown(layer)} do not belong together; the file is damaged"
            )
    if not pairs:
        raise ModelError(f"{file} contains no weights; the file is damaged")
    return {layer: (pair["lora_A"], pair["lora_B"]) for layer, pair in pairs.items()}


def shown(value: object) -> str:
    """Return a value that a stranger wrote as one short line."""
    return one_line(repr(value))[:200]
