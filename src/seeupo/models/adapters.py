"""Merge LoRA adapters into the weights that they adapt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

ADAPTED = ".base_layer."
"""Part of the name that peft gives to the weights of an adapted layer."""


def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights by their Hugging Face names, adapters merged; tied weights appear once."""
    weights: dict[str, Tensor] = {
        name.replace(ADAPTED, "."): weight.detach() for name, weight in model.named_parameters() if ".lora_" not in name
    }
    for name, layer in _adapted_layers(model).items():
        (adapter,) = layer.active_adapters
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight(adapter).detach()
    return weights


def _adapted_layers(model: PreTrainedModel) -> dict[str, Any]:
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}


def merge_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy with the adapters merged into the weights, or the model itself if it has none."""
    if not _adapted_layers(model):
        return model
    with torch.random.fork_rng(devices=[]):  # random initial weights, replaced below
        merged = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype)
    merged.to(model.device)
    merged.load_state_dict(merged_weights(model), strict=False)
    merged.tie_weights()
    if model.generation_config is not None:
        merged.generation_config = model.generation_config
    plain: PreTrainedModel = merged
    return plain
