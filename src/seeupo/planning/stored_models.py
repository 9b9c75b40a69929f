"""The shape of a model from its configuration in a folder, in the local cache or on the model hub."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from seeupo.errors import ModelError, first_line
from seeupo.models.config_check import read_config
from seeupo.models.location import is_adapter, locate
from seeupo.models.lora.adapter_folders import read_adapter
from seeupo.models.lora.turn_adapters import refuse_training
from seeupo.planning.shapes import ModelShape


def stored_shape(name: str) -> ModelShape:
    """Return the shape of a model of a folder or of the model hub; no weights are read."""
    source, config = _find_config(name)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError) as error:
        raise ModelError(f"{name} is not a causal language model: {first_line(error)}") from None
    return shape_of_model(model, source)


def shape_of_model(model: PreTrainedModel, source: str) -> ModelShape:
    """Return the shape of a model without adapters, on any device."""
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    return ModelShape(
        source=source,
        hidden=int(config.hidden_size),
        layers=int(config.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        intermediate=int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size),
        vocabulary=int(config.vocab_size),
        context=int(config.max_position_embeddings),
        query_norms=any(".q_norm." in name for name, _ in model.named_parameters()),
        sizes={name: parameter.numel() for name, parameter in model.named_parameters()},
        linear={
            name: (module.in_features, module.out_features)
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
        },
    )


def _find_config(name: str) -> tuple[str, PretrainedConfig]:
    """Return where a model's configuration was found, and the configuration."""
    if Path(name).is_dir():
        refuse_training(Path(name))
        if is_adapter(Path(name)):
            return _find_config(read_adapter(Path(name)).base)
        return name, _read_config(name, local=True)
    try:
        return "the local cache of the model hub", _read_config(name, local=True)
    except ModelError:
        return "the model hub", _read_config(locate(name), local=False)


def _read_config(name: str, *, local: bool) -> PretrainedConfig:
    try:
        return read_config(name, local=local)
    except ModelError as error:
        raise ModelError(f"the shape of {name} is unknown: {first_line(error)}. Give a model folder") from None
