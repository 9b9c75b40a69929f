"""Run a Llama- or Qwen-like model over a flat list of tokens, with attention supplied by the caller.

The sampler needs its own attention: it caches keys and values between calls and shares those of a prompt among rows.
All other computation uses the model's modules, so adapters and new weights take effect at once.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import PreTrainedModel

FAMILIES = ("llama", "qwen2", "qwen3")


class Attention(Protocol):
    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend in a layer: queries [N, Hq, D], new keys and values [N, Hkv, D] -> [N, Hq, D]."""


class Decoder:
    """The layers of a model, applied to single tokens.

    Attributes:
        num_layers, query_heads, kv_heads, head_dim: Shape of the attention.
    """

    def __init__(self, model: PreTrainedModel) -> None:
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

    @torch.no_grad()
    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """Return last hidden states [N, H] of tokens [N] at positions [N]."""
        base: Any = self.model.base_model
        count, rotated_heads = len(tokens), self.query_heads + self.kv_heads
        states: Tensor = base.embed_tokens(tokens)
        cos, sin = (table[0, :, None] for table in base.rotary_emb(states[None], positions[None]))
        # x * cos + (-second half, first half) * sin, with the sign in the table.
        sin = torch.cat([-sin[..., : self.head_dim // 2], sin[..., self.head_dim // 2 :]], -1)
        for index, layer in enumerate(base.layers):
            attention, normed = layer.self_attn, _norm(layer.input_layernorm, states)
            values = attention.v_proj(normed).view(count, self.kv_heads, self.head_dim)
            queries, keys = attention.q_proj(normed), attention.k_proj(normed)
            if hasattr(attention, "q_norm"):
                queries = _norm(attention.q_norm, queries.view(count, self.query_heads, self.head_dim)).flatten(1)
                keys = _norm(attention.k_norm, keys.view(count, self.kv_heads, self.head_dim)).flatten(1)
            both = torch.cat([queries, keys], 1).view(count, rotated_heads, self.head_dim)
            both = torch.addcmul(both * cos, both.roll(self.head_dim // 2, -1), sin).to(values.dtype)
            attended = attend(index, both[:, : self.query_heads], both[:, self.query_heads :], values)
            states = states + attention.o_proj(attended.reshape(count, -1))
            states = states + layer.mlp(_norm(layer.post_attention_layernorm, states))
        return _norm(base.norm, states)

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """Return log-probs [R, V] of the next token after hidden states [R, H], at one temperature per row [R]."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return (logits / temperature[:, None]).log_softmax(1)


def _norm(module: Any, states: Tensor) -> Tensor:
    """Apply an RMS norm of the model, as one operation instead of seven where that does not change the rounding."""
    if states.dtype == torch.bfloat16:
        return module(states)  # type: ignore[no-any-return]
    return rms_norm(states, states.shape[-1:], module.weight, module.variance_epsilon)
