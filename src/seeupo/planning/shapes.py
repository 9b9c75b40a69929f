"""The shape of a model: sizes of its parameters and layers, from its configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from seeupo.config.model_settings import SPECIAL_TOKENS, LoraSettings, ModelSettings, TinySettings, word_tokens
from seeupo.config.optimizer_settings import OptimizerSettings, trainable_names
from seeupo.errors import ModelError
from seeupo.models.catalog import CATALOG

KNOWN_SHAPES: Mapping[str, Mapping[str, Any]] = json.loads(
    (files("seeupo.planning") / "known_shapes.json").read_text("utf-8")
)
"""Keys of config.json of the models that shipped recipes name, by name on the model hub."""


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
        return [lora.rank * size for sizes in adapted for size in sizes] * (lora.adapters or 1)

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
    match = re.search(r"\.layers\.(\d+)\.", name)
    return None if match is None else int(match[1])


def shape_of(settings: ModelSettings, words: Sequence[str] = ()) -> ModelShape:
    """Return the shape of a recipe's model; no weights are read. `words` is the vocabulary of the model `tiny`.

    The models of the shipped recipes are in a table; other configurations come from a folder, the local cache or the
    model hub.
    """
    name = settings.name
    if name == "tiny":
        return _tiny_shape(settings.tiny, words)
    hub_id = CATALOG[name].hub_id if name in CATALOG else name
    if hub_id in KNOWN_SHAPES and not Path(name).is_dir():
        return shape_from_config(KNOWN_SHAPES[hub_id], "the built-in table")
    if not Path(name).is_dir() and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
        raise ModelError(f"unknown model {name!r}; expected tiny, {', '.join(CATALOG)}, a folder, or owner/name")
    from seeupo.planning.stored_models import stored_shape

    return stored_shape(name)


def _tiny_shape(tiny: TinySettings, words: Sequence[str]) -> ModelShape:
    config = {
        "model_type": "llama",
        "hidden_size": tiny.width,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.heads,
        "intermediate_size": tiny.width * 8 // 3,
        # A trained tokenizer has at most this many tokens, and one without training a token per byte.
        "vocab_size": len(word_tokens(words)) if words else tiny.vocabulary or 256 + len(SPECIAL_TOKENS),
        "max_position_embeddings": tiny.context,
        "tie_word_embeddings": True,
    }
    return shape_from_config(config, "the recipe")


def shape_from_config(config: Mapping[str, Any], source: str) -> ModelShape:
    """Return the shape of a Llama, Qwen2 or Qwen3 from its config.json."""
    hidden, intermediate, vocabulary = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    attention = {"q_proj": (hidden, heads * head_dim), "k_proj": (hidden, kv_heads * head_dim)}
    attention |= {"v_proj": attention["k_proj"], "o_proj": (heads * head_dim, hidden)}
    mlp = {"gate_proj": (hidden, intermediate), "up_proj": (hidden, intermediate), "down_proj": (intermediate, hidden)}
    matrices = {f"self_attn.{name}": sizes for name, sizes in attention.items()}
    matrices |= {f"mlp.{name}": sizes for name, sizes in mlp.items()}
    vectors = {"input_layernorm.weight": hidden, "post_attention_layernorm.weight": hidden}
    if config["model_type"] == "qwen2":
        vectors |= {f"self_attn.{name}.bias": attention[name][1] for name in ("q_proj", "k_proj", "v_proj")}
    if config["model_type"] == "qwen3":
        vectors |= {"self_attn.q_norm.weight": head_dim, "self_attn.k_norm.weight": head_dim}
    sizes = {"model.embed_tokens.weight": vocabulary * hidden}
    linear = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in matrices.items():
            linear[f"model.layers.{layer}.{name}"] = (inputs, outputs)
            sizes[f"model.layers.{layer}.{name}.weight"] = inputs * outputs
        sizes |= {f"model.layers.{layer}.{name}": size for name, size in vectors.items()}
    sizes["model.norm.weight"] = hidden
    linear["lm_head"] = (hidden, vocabulary)
    if not config["tie_word_embeddings"]:
        sizes["lm_head.weight"] = hidden * vocabulary
    return ModelShape(
        source=source,
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocabulary=vocabulary,
        context=config["max_position_embeddings"],
        query_norms=config["model_type"] == "qwen3",
        sizes=sizes,
        linear=linear,
    )
