"""LoRA adapters: add them to a model, merge them into the weights that they adapt, or remove them."""

from __future__ import annotations

import copy
import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from seeupo.config.model_settings import LoraSettings
from seeupo.models.lora.adapter_folders import Adapter
from seeupo.models.lora.turn_adapters import TurnAdapters, add_named, check_adapted, set_turn_adapters

ADAPTED = ".base_layer."
"""Part of the name that peft gives to the weights of an adapted layer."""
ONE_ADAPTER = "default"
"""Name of an adapter for all turns."""


def add_adapters(model: PreTrainedModel, lora: LoraSettings, adapter: Adapter | None = None) -> None:
    """Add adapters to train: new ones, which do not change the outputs yet, or the ones of an adapter folder.

    They are float32, or float64 if the model is.
    """
    if importlib.util.find_spec("peft") is None:
        raise ValueError("lora needs peft: pip install 'seeupo[lora]'")
    from peft import LoraConfig

    count = int(model.config.get_text_config().num_hidden_layers)
    if lora.layers is not None and lora.layers > count:
        raise ValueError(f"lora.layers = {lora.layers}: expected at most {count}, the number of the model's layers")
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets),
        layers_to_transform=None if lora.layers is None else list(range(count - lora.layers, count)),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    if lora.adapters is not None:
        if adapter is not None:
            option = "per_role" if lora.per_role else "per_turn"
            raise ValueError(
                f"lora.{option} with the adapter {adapter.path}: expected a model without adapters. Leave out "
                f"{option}, or merge the adapter first"
            )
        names = set_turn_adapters(model, TurnAdapters.from_settings(lora)).names
    else:
        names = (ONE_ADAPTER,)
    for name in names:
        copied = copy.deepcopy(config)
        with torch.random.fork_rng(devices=[]), _stand_ins(model):
            torch.manual_seed(lora.seed)  # all start equal
            add_named(model, copied, name)
        copied.base_model_name_or_path = None  # with a name, peft looks for the model on the hub in each save
    if lora.adapters is not None:
        check_adapted(model)
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.to(dtype)
    if adapter is not None:
        _load_adapter(model, adapter, lora)


@contextmanager
def _stand_ins(model: PreTrainedModel) -> Iterator[None]:
    """Replace weights on the meta device within the context by tensors of the same shape that take no memory.

    peft puts adapters where the weights are, and on the meta device their initial values would be lost.
    """
    missing = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.is_meta
    ]
    for module, name, parameter in missing:
        stand_in = torch.empty((), dtype=parameter.dtype).expand(parameter.shape)
        module._parameters[name] = torch.nn.Parameter(stand_in, requires_grad=False)
    try:
        yield
    finally:
        for module, name, parameter in missing:
            module._parameters[name] = parameter


def _load_adapter(model: PreTrainedModel, adapter: Adapter, lora: LoraSettings) -> None:
    """Set the adapters of a model to an adapter folder of the same shape."""
    adapted = {name.partition(".lora_A.")[0] for name, _ in model.named_parameters() if ".lora_A." in name}
    same = adapted == adapter.layers.keys() and not adapter.rank_stabilized
    if not same or (adapter.rank, adapter.alpha) != (lora.rank, lora.alpha):
        targets = sorted({name.rpartition(".")[2] for name in adapter.layers})
        count = len({re.sub(r"(\.layers\.\d+\.).*", r"\1", name) for name in adapter.layers})
        raise ValueError(
            f"model.lora has rank {lora.rank}, alpha {lora.alpha} and targets {', '.join(lora.targets)} in "
            f"{lora.layers or 'all'} layers; the adapter {adapter.path} has rank {adapter.rank}, alpha "
            f"{adapter.alpha:g} and targets {', '.join(targets)} in {count} layers. Use these to train it further, or "
            "leave out model.lora to merge it and train all weights"
        )
    adapter.copy_into(model, ONE_ADAPTER)


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter."""
    return ".lora_" in name


def merged_weights(
    model: PreTrainedModel, full: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by their Hugging Face names, adapters merged; tied weights appear once.

    `full` returns the whole of a weight that is sharded.
    """
    adapted = {name: layer for name, layer in model.named_modules() if is_adapted(layer)}
    for name, weight in model.named_parameters():
        if is_adapter(name):
            continue
        plain = name.replace(ADAPTED, ".")
        merged = full(weight.detach())
        layer = adapted.get(plain.removesuffix(".weight")) if plain.endswith(".weight") else None
        if layer is not None:
            merged = merged_weight(layer, merged, full)
        yield plain, merged


def merged_weight(layer: Any, weight: Tensor, full: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Tensor:
    """Return the weight of an adapted layer with its adapter merged."""
    (adapter,) = layer.active_adapters
    up, down = (full(matrix[adapter].weight.detach()) for matrix in (layer.lora_B, layer.lora_A))
    scale: float = layer.scaling[adapter]
    return (weight + (up @ down) * scale).to(weight.dtype)


def is_adapted(layer: Any) -> bool:
    """Return whether a layer has an adapter."""
    return hasattr(layer, "get_delta_weight")


def base_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights by their Hugging Face names, as they are without adapters; tied weights appear once."""
    return {
        name.replace(ADAPTED, "."): weight.detach() for name, weight in model.named_parameters() if not is_adapter(name)
    }


def plain_model(model: PreTrainedModel, weights: dict[str, Tensor]) -> PreTrainedModel:
    """Return a model of the same architecture with these weights and without adapters."""
    with torch.random.fork_rng(devices=[]):  # random initial weights, replaced below
        plain: PreTrainedModel = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype)
    torch.nn.Module.to(plain, device=next(iter(weights.values())).device)
    plain.load_state_dict(weights, strict=False)
    plain.tie_weights()
    if model.generation_config is not None:
        plain.generation_config = model.generation_config
    return plain
