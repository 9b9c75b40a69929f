"""Merge LoRA adapters into the weights that they adapt, or remove them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

ADAPTED = ".base_layer."
"""Part of the name that peft gives to the weights of an adapted layer."""


def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights by their Hugging Face names, adapters merged; tied weights appear once."""
    weights = base_weights(model)
    for name, layer in _adapted_layers(model).items():
        (adapter,) = layer.active_adapters
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight(adapter).detach()
    return weights


def _adapted_layers(model: PreTrainedModel) -> dict[str, Any]:
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}


def base_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights by their Hugging Face names, as they are without adapters; tied weights appear once."""
    return {
        name.replace(ADAPTED, "."): weight.detach() for name, weight in model.named_parameters() if ".lora_" not in name
    }


def merge_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy with the adapters merged into the weights, or the model itself if it has none."""
    return _plain_model(model, merged_weights(model)) if _adapted_layers(model) else model


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the model without its adapters."""
    return _plain_model(model, base_weights(model))


def _plain_model(model: PreTrainedModel, weights: dict[str, Tensor]) -> PreTrainedModel:
    """Return a model of the same architecture with these weights and without adapters."""
    with torch.random.fork_rng(devices=[]):  # random initial weights, replaced below
        plain = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype)
    plain.to(model.device)
    plain.load_state_dict(weights, strict=False)
    plain.tie_weights()
    if model.generation_config is not None:
        plain.generation_config = model.generation_config
    made: PreTrainedModel = plain
    return made
