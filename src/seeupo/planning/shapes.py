"""The shape of a model: sizes of its parameters and layers, from its configuration on the meta device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from seeupo.config.model_settings import LoraSettings, ModelSettings
from seeupo.config.optimizer_settings import OptimizerSettings, trainable_names
from seeupo.errors import ModelError, first_line
from seeupo.models.catalog import CATALOG, downloaded_folder
from seeupo.models.lora.adapter_folders import is_adapter, read_adapter
from seeupo.models.lora.turn_adapters import refuse_training
from seeupo.models.tiny import tiny_model, tiny_tokenizer
from seeupo.planning.known_shapes import KNOWN_SHAPES


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model.

    Attributes:
        source: Where the configuration comes from.
        hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary, context: As in the configuration.
        query_norms: Whether queries and keys are normalized (Qwen3).
        sizes: Number of weights of each parameter, by name; tied weights appear once.
        linear: (inputs, outputs) of each linear layer, by name.
    """

    source: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    query_norms: bool
    sizes: Mapping[str, int]
    linear: Mapping[str, tuple[int, int]]

    @property
    def parameters(self) -> int:
        return sum(self.sizes.values())

    @property
    def layer_parameters(self) -> int:
        """Number of weights of one transformer layer."""
        return sum(size for name, size in self.sizes.items() if ".layers." in name) // self.layers

    @property
    def outer_parameters(self) -> int:
        """Number of weights outside the layers: embeddings and output head."""
        return self.parameters - self.layers * self.layer_parameters

    def adapter_sizes(self, lora: LoraSettings) -> list[int]:
        """Return the number of weights of each matrix of LoRA adapters."""
        lowest = self.layers - (lora.layers or self.layers)
        adapted = [
            sizes
            for name, sizes in self.linear.items()
            if name.rpartition(".")[2] in lora.targets and (_layer_index(name) or 0) >= lowest
        ]
        return [lora.rank * size for sizes in adapted for size in sizes] * (lora.per_turn or 1)

    def trained_sizes(self, model: ModelSettings, optimizer: OptimizerSettings) -> list[int]:
        """Return the number of weights of each parameter that is trained."""
        if model.lora is not None:
            return self.adapter_sizes(model.lora)
        trained = trainable_names(optimizer.trainable, self.sizes)
        return [size for name, size in self.sizes.items() if name in trained]

    def trunk_layers(self, model: ModelSettings, optimizer: OptimizerSettings) -> int:
        """Return the number of layers below the first one that is trained; 0 if the embeddings are trained."""
        if model.lora is not None:
            return self.layers - (model.lora.layers or self.layers)
        trained = trainable_names(optimizer.trainable, self.sizes)
        if any("embed" in name for name in trained):
            return 0
        return min((index for name in trained if (index := _layer_index(name)) is not None), default=self.layers - 1)


def _layer_index(name: str) -> int | None:
    """Return the number of the layer that a parameter or module belongs to; None if it is outside the layers."""
    found = re.search(r"\.layers\.(\d+)\.", name)
    return None if found is None else int(found[1])


def shape_of(settings: ModelSettings, words: Sequence[str] = ()) -> ModelShape:
    """Return the shape of a recipe's model; no weights are read. `words` is the vocabulary of the model `tiny`.

    Configurations come from a folder or the local cache, else from the built-in table, else from the model hub.
    """
    if settings.name == "tiny":
        # A trained tokenizer has at most this many tokens.
        tiny = settings.tiny.config(words=words or [str(number) for number in range(settings.tiny.vocabulary)])
        return shape_of_model(tiny_model(tiny, tiny_tokenizer(tiny)), "the recipe")
    source, config = _find_config(settings.name)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError) as error:
        raise ModelError(f"{settings.name} is not a causal language model: {first_line(error)}") from None
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
    if name in CATALOG:
        folder = downloaded_folder(name)
        if folder is None:
            raise ModelError(f"{name} is not downloaded yet; run: seeupo models fetch {name}")
        return str(folder), _read_config(str(folder), local=True)
    if Path(name).is_dir():
        refuse_training(Path(name))
        if is_adapter(Path(name)):
            return _find_config(read_adapter(Path(name)).base)
        return name, _read_config(name, local=True)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ModelError(f"unknown model {name!r}; expected tiny, {', '.join(CATALOG)}, a folder, or owner/name")
    try:
        return "the local cache of the model hub", _read_config(name, local=True)
    except ModelError:
        if name in KNOWN_SHAPES:
            return "the built-in table", AutoConfig.for_model(**KNOWN_SHAPES[name])
    return "the model hub", _read_config(name, local=False)


def _read_config(name: str, *, local: bool) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=local)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the shape of {name} is unknown: {first_line(error)}. Connect to the model hub, or give a model folder"
        ) from None
    return config
