"""Run a Llama- or Qwen-like model over a flat list of tokens, with attention supplied by the caller.

The sampler needs its own attention: it caches keys and values between calls, and rows with the same prompt share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import PreTrainedModel

from seeupo.config.model_settings import SNAPSHOT_BYTES
from seeupo.inference.decoding_weights import AdapterRows, DecodingWeights
from seeupo.models.lora.adapters import is_adapted
from seeupo.models.lora.turn_adapters import turn_adapters
from seeupo.models.packing.tree_layers import FAMILIES


class Attention(Protocol):
    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend in a layer: queries [N, Hq, D], new keys and values [N, Hkv, D] -> [N, Hq, D]."""


class Decoder:
    """The layers of a model, applied to single tokens.

    In float32 and float64 they are computed from a snapshot of the weights, made when it is first needed. After
    the weights have changed, `drop_snapshot` must be called; keys and values of one snapshot do not fit another. Larger
    models, and all computation in bfloat16, use the model's own modules: merged adapters would be rounded to bfloat16.
    """

    def __init__(self, model: PreTrainedModel, *, snapshot_bytes: int = SNAPSHOT_BYTES) -> None:
        config = model.config.get_text_config()
        if config.model_type not in FAMILIES:
            raise ValueError(
                f"model type {config.model_type!r} is not supported by this decoder; supported: {', '.join(FAMILIES)}"
            )
        self.model = model
        self.num_layers = int(config.num_hidden_layers)
        self.query_heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        size = sum(weight.nbytes for weight in model.parameters())
        self._has_snapshot = size <= snapshot_bytes and model.dtype in (torch.float32, torch.float64)
        self._weights: DecodingWeights | None = None

    def drop_snapshot(self) -> None:
        """Free the snapshot of the weights; the next call makes a new one."""
        self._weights = None

    def _snapshot(self) -> DecodingWeights | None:
        """Return the snapshot, or None if the model's own modules are used."""
        if not self._has_snapshot or torch.is_autocast_enabled(self.model.device.type):
            return None
        if self._weights is None:
            self._weights = DecodingWeights(self.model, self.query_heads, self.kv_heads)
        return self._weights

    @torch.no_grad()
    def hidden(
        self, tokens: Tensor, positions: Tensor, attend: Attention, adapters: Sequence[AdapterRows] = ()
    ) -> Tensor:
        """Return last hidden states [N, H] of tokens [N] at positions [N].

        With one adapter per turn, `adapters` says which tokens are computed with which adapter.
        """
        base: Any = self.model.base_model
        states: Tensor = base.embed_tokens(tokens)
        cos, sin = (table[0, :, None] for table in base.rotary_emb(states[None], positions[None]))
        rotary = (cos, sin)
        weights = self._snapshot()
        if weights is not None:
            states = self._apply_snapshot(weights, states, rotary, attend, adapters)
        else:
            states = self._apply_modules(states, rotary, attend, adapters)
        return _norm(base.norm, states)

    def _apply_snapshot(
        self,
        weights: DecodingWeights,
        states: Tensor,
        rotary: tuple[Tensor, Tensor],
        attend: Attention,
        adapters: Sequence[AdapterRows],
    ) -> Tensor:
        """Apply all layers to states [N, H], which are changed in place."""
        heads = (self.query_heads, self.kv_heads, self.kv_heads)
        rotated_heads = self.query_heads + self.kv_heads
        cos, sin = (table[..., : self.head_dim // 2] for table in rotary)
        rotation = torch.complex(cos, sin)
        for index, layer in enumerate(weights.layers):
            projected = layer.project(states, rotation, rotated_heads, adapters)
            attended = attend(index, *projected.split(heads, 1))
            states.add_(layer.output(attended.reshape(len(states), -1), adapters))
            layer.add_mlp(states, adapters)
        return states

    def _apply_modules(
        self, states: Tensor, rotary: tuple[Tensor, Tensor], attend: Attention, adapters: Sequence[AdapterRows]
    ) -> Tensor:
        """Apply all layers to states [N, H] with the model's modules."""
        apply, rotated_heads = self._linear(adapters), self.query_heads + self.kv_heads
        base: Any = self.model.base_model
        # x * cos + (-second half, first half) * sin, with the sign in the table.
        cos, sin = rotary
        sin = torch.cat([-sin[..., : self.head_dim // 2], sin[..., self.head_dim // 2 :]], -1)
        count = len(states)
        for index, layer in enumerate(base.layers):
            attention, normed = layer.self_attn, _norm(layer.input_layernorm, states)
            values = apply(attention.v_proj, normed).view(count, self.kv_heads, self.head_dim)
            queries, keys = apply(attention.q_proj, normed), apply(attention.k_proj, normed)
            if hasattr(attention, "q_norm"):
                queries = _norm(attention.q_norm, queries.view(count, self.query_heads, self.head_dim)).flatten(1)
                keys = _norm(attention.k_norm, keys.view(count, self.kv_heads, self.head_dim)).flatten(1)
            both = torch.cat([queries, keys], 1).view(count, rotated_heads, self.head_dim)
            both = torch.addcmul(both * cos, both.roll(self.head_dim // 2, -1), sin).to(values.dtype)
            attended = attend(index, both[:, : self.query_heads], both[:, self.query_heads :], values)
            states = states + apply(attention.o_proj, attended.reshape(count, -1))
            mlp, normed = layer.mlp, _norm(layer.post_attention_layernorm, states)
            states = states + apply(
                mlp.down_proj, mlp.act_fn(apply(mlp.gate_proj, normed)) * apply(mlp.up_proj, normed)
            )
        return states

    def _linear(self, adapters: Sequence[AdapterRows]) -> Callable[[Any, Tensor], Tensor]:
        """Return a function that applies a linear module, with one adapter per turn the adapter of each row."""
        per_turn = turn_adapters(self.model)
        if per_turn is None:
            return lambda module, states: module(states)

        def apply(module: Any, states: Tensor) -> Tensor:
            if not is_adapted(module):
                return module(states)  # type: ignore[no-any-return]
            result: Tensor = module.base_layer(states)
            for adapter, rows in adapters:
                name = per_turn.names[adapter]
                down, up = module.lora_A[name], module.lora_B[name]
                delta = up(down(states[rows].to(down.weight.dtype))) * module.scaling[name]
                result[rows] = result[rows] + delta
            return result

        return apply

    @torch.no_grad()
    def probabilities(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """Return probabilities [R, V] of the next token after hidden states [R, H], at one temperature per row [R]."""
        weights = self._snapshot()
        if weights is not None:
            scaled = weights.head(hidden / temperature[:, None])
            return torch.softmax(scaled, 1, out=scaled)
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return (logits / temperature[:, None]).softmax(1)


def _norm(module: Any, states: Tensor) -> Tensor:
    """Apply an RMS norm of the model, as one operation instead of seven where that does not change the rounding."""
    if states.dtype == torch.bfloat16:
        return module(states)  # type: ignore[no-any-return]
    return rms_norm(states, states.shape[-1:], module.weight, module.variance_epsilon)
