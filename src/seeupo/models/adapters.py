"""Low-rank adapters, made part of the weights that they adapt."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

ADAPTED = ".base_layer."
"""Where peft puts the weights of a layer that it adds an adapter to."""


def without_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, or one in which low-rank adapters have become part of the weights they adapt."""
    layers = {name: layer for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}
    if not layers:
        return model
    weights: dict[str, Tensor] = {
        name.replace(ADAPTED, "."): weight.detach()
        for name, weight in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, layer in layers.items():
        (adapter,) = layer.active_adapters
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight(adapter).detach()
    with torch.random.fork_rng(devices=[]):  # its first weights are drawn, and thrown away
        merged = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype)
    merged.to(model.device)
    merged.load_state_dict(weights)
    merged.tie_weights()
    if model.generation_config is not None:
        merged.generation_config = model.generation_config
    plain: PreTrainedModel = merged
    return plain
