"""LoRA adapters: add them to a model, and merge them into the weights that they adapt."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from seeupo.core.checks import check_count

ADAPTED = ".base_layer."
"""Part of the name that peft gives to the weights of an adapted layer."""


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """LoRA adapters on linear layers (needs the extra 'lora'); all other weights are frozen.

    Attributes:
        rank: Rank of each adapter.
        alpha: Scale of the adapters: their output is multiplied by alpha / rank.
        targets: Names of the adapted layers (`target_modules` of peft).
        seed: Random seed of the initialization.
    """

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("rank", self.rank, 1)
        check_count("alpha", self.alpha, 1)


def add_adapters(model: PreTrainedModel, lora: LoraSettings) -> None:
    """Add adapters that do not change the model's outputs yet. They are float32, or float64 if the model is."""
    if importlib.util.find_spec("peft") is None:
        raise ValueError("lora needs peft: pip install 'seeupo[lora]'")
    from peft import LoraConfig

    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets), lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lora.seed)
        model.add_adapter(config)
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.to(dtype)


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter."""
    return ".lora_" in name


def merged_weights(
    model: PreTrainedModel, full: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by their Hugging Face names, adapters merged; tied weights appear once.

    `full` returns the whole of a weight that is sharded.
    """
    adapted = _adapted_layers(model)
    for name, weight in model.named_parameters():
        if is_adapter(name):
            continue
        plain = name.replace(ADAPTED, ".")
        merged = full(weight.detach())
        layer = adapted.get(plain.removesuffix(".weight")) if plain.endswith(".weight") else None
        if layer is not None:
            (adapter,) = layer.active_adapters
            up, down = (full(matrix[adapter].weight.detach()) for matrix in (layer.lora_B, layer.lora_A))
            merged = (merged + (up @ down) * layer.scaling[adapter]).to(merged.dtype)
        yield plain, merged


def _adapted_layers(model: PreTrainedModel) -> dict[str, Any]:
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}


def merge_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy with the adapters merged into the weights, or the model itself if it has none."""
    return plain_model(model, dict(merged_weights(model))) if _adapted_layers(model) else model


def plain_model(model: PreTrainedModel, weights: dict[str, Tensor]) -> PreTrainedModel:
    """Return an ordinary model of the same configuration with the given weights."""
    with torch.random.fork_rng(devices=[]):  # random initial weights, replaced below
        plain: PreTrainedModel = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype)
    torch.nn.Module.to(plain, device=next(iter(weights.values())).device)
    plain.load_state_dict(weights, strict=False)
    plain.tie_weights()
    if model.generation_config is not None:
        plain.generation_config = model.generation_config
    return plain
