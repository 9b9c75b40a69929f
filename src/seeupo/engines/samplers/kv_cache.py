"""Keys, values and attention of the local sampler: shared prompts, private rows, prefill and decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seeupo.models.decoder import Decoder


@dataclass
class Prompt:
    """Keys and values of a prompt, shared by all rows that start with it: [Hkv, P, D] per layer."""

    tokens: tuple[int, ...]
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


@dataclass
class Context:
    """The computed part of a sequence: a shared prompt, followed by private tokens with their keys and values.

    While the sequence is in the batch, its private keys and values are in its row of the cache; otherwise they are in
    `keys` and `values`, [Hkv, S, D] per layer.
    """

    prompt: Prompt
    tokens: list[int]
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class RowCache:
    """Private keys and values of the rows, [rows, Hkv, S, D] per layer; the capacity grows by doubling."""

    def __init__(self, decoder: Decoder, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (rows, decoder.kv_heads, 64, decoder.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(decoder.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(decoder.num_layers)]

    def reserve(self, length: int) -> None:
        have = self.keys[0].shape[2]
        if length > have:
            more = max(length, 2 * have) - have
            for tables in (self.keys, self.values):
                for layer, table in enumerate(tables):
                    tables[layer] = torch.nn.functional.pad(table, (0, 0, 0, more))

    def insert(self, row: int, context: Context) -> None:
        length = len(context.tokens)
        self.reserve(length + 1)
        if length:
            for layer, (keys, values) in enumerate(zip(context.keys, context.values, strict=True)):
                self.keys[layer][row, :, :length] = keys[:, :length]
                self.values[layer][row, :, :length] = values[:, :length]

    def extract(self, row: int, context: Context) -> None:
        length = len(context.tokens)
        context.keys = [table[row, :, :length].clone() for table in self.keys]
        context.values = [table[row, :, :length].clone() for table in self.values]

    def move(self, source: int, target: int, length: int) -> None:
        for table in (*self.keys, *self.values):
            table[target, :, :length] = table[source, :, :length]


@dataclass
class PromptAttention:
    """Causal attention within a prompt; stores its keys and values."""

    prompt: Prompt

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        own_keys, own_values = keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()
        self.prompt.keys.append(own_keys)
        self.prompt.values.append(own_values)
        return causal(queries, own_keys, own_values)


@dataclass
class NewTokens:
    """Tokens of a row that follow its cached context."""

    row: int
    context: Context
    tokens: tuple[int, ...]

    @property
    def position(self) -> int:
        return len(self.context.prompt.tokens) + len(self.context.tokens)


class PrefillAttention:
    """Attention of new tokens of several rows: to the row's prompt and private tokens, and causally to themselves."""

    def __init__(self, cache: RowCache, added: list[NewTokens]) -> None:
        self.cache, self.added = cache, added
        cache.reserve(max(len(new.context.tokens) + len(new.tokens) for new in added) + 1)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        attended, first = torch.empty_like(queries), 0
        for new in self.added:
            here = slice(first, first + len(new.tokens))
            start, end = len(new.context.tokens), len(new.context.tokens) + len(new.tokens)
            seen = []
            for computed, table, prompt in (
                (keys, self.cache.keys[layer], new.context.prompt.keys),
                (values, self.cache.values[layer], new.context.prompt.values),
            ):
                table[new.row, :, start:end] = computed[here].transpose(0, 1)
                own = table[new.row, :, :end]
                seen.append(torch.cat([prompt[layer], own], 1) if prompt else own)
            attended[here] = causal(queries[here], *seen)
            first = here.stop
        return attended


class DecodeAttention:
    """Attention of one new token per row: to the prompt, jointly with the rows that share it, and to private tokens.

    The two parts are merged by the logarithms of their softmax sums, which gives the softmax over both.
    """

    def __init__(self, cache: RowCache, prompts: list[Prompt], lengths: list[int]) -> None:
        self.cache = cache
        self.rows = len(prompts)
        cache.reserve(max(lengths) + 1)
        device = cache.keys[0].device
        self.lengths = torch.tensor(lengths, device=device)
        self.longest = max(lengths) + 1
        beyond = torch.arange(self.longest, device=device) > self.lengths[:, None]
        dtype = torch.promote_types(cache.keys[0].dtype, torch.float32)
        self.mask = torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill_(beyond, -math.inf)
        self.all_rows = torch.arange(self.rows, device=device)
        by_prompt: dict[int, list[int]] = {}
        for row, prompt in enumerate(prompts):
            if prompt.tokens:
                by_prompt.setdefault(id(prompt), []).append(row)
        self.groups = [(prompts[rows[0]], len(rows)) for rows in by_prompt.values()]
        order = [row for rows in by_prompt.values() for row in rows]
        self.order = None if order == list(range(self.rows)) else torch.tensor(order, device=device)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows, kv_heads, head_dim = keys.shape
        repeat = queries.shape[1] // kv_heads
        scaled = (queries.to(self.mask.dtype) * head_dim**-0.5).view(rows, kv_heads, repeat, head_dim)
        self.cache.keys[layer][self.all_rows, :, self.lengths] = keys
        self.cache.values[layer][self.all_rows, :, self.lengths] = values
        own_keys = self.cache.keys[layer][:rows, :, : self.longest]
        own_values = self.cache.values[layer][:rows, :, : self.longest]
        scores = attention_scores(scaled, own_keys).add_(self.mask[:, None, None])
        own, own_total = partial_attention(scores, own_values)
        if not self.groups:
            return own.reshape(rows, -1, head_dim)
        if self.order is None:
            merged = merge(own, own_total, *self._attend_to_prompts(layer, scaled))
        else:
            merged = own.clone()
            shared = merge(own[self.order], own_total[self.order], *self._attend_to_prompts(layer, scaled[self.order]))
            merged[self.order] = shared
        return merged.reshape(rows, -1, head_dim)

    def _attend_to_prompts(self, layer: int, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """Attend with queries [rows, Hkv, repeat, D], grouped by prompt, to their prompts."""
        _, kv_heads, repeat, head_dim = scaled.shape
        results, totals, first = [], [], 0
        for prompt, count in self.groups:
            # [Hkv, count * repeat, D] times [Hkv, P, D]: one matrix product for all rows of the prompt.
            together = scaled[first : first + count].transpose(0, 1).reshape(kv_heads, -1, head_dim)
            result, total = partial_attention(attention_scores(together, prompt.keys[layer]), prompt.values[layer])
            results.append(result.view(kv_heads, count, repeat, head_dim).transpose(0, 1))
            totals.append(total.view(kv_heads, count, repeat, 1).transpose(0, 1))
            first += count
        return (results[0], totals[0]) if len(results) == 1 else (torch.cat(results), torch.cat(totals))


def merge(one: Tensor, one_total: Tensor, other: Tensor, other_total: Tensor) -> Tensor:
    """Return attention over two parts from attention over each, weighted by the logarithms of their softmax sums."""
    return torch.lerp(other, one, (one_total - other_total).sigmoid())


def attention_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the products [..., Q, S] of queries [..., Q, D] and keys [..., S, D].

    For keys in bfloat16, queries and products are float32, as inside PyTorch's kernels: rounded products would change
    the softmax by percents.
    """
    if keys.dtype != torch.bfloat16:
        return queries @ keys.transpose(-1, -2)
    with torch.autocast(keys.device.type, enabled=False):
        return queries @ keys.float().transpose(-1, -2)


def partial_attention(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of scores [..., S] over values [..., S, D], and the logarithm of its sum [..., 1]."""
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp_()
    total = weights.sum(-1, keepdim=True)
    return weights.to(values.dtype) @ values / total, top + total.log()


def causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend causally with the last N positions [N, Hq, D] of a sequence to its keys and values [Hkv, S, D]."""
    count, seen = len(queries), keys.shape[1]
    mask = torch.ones(count, seen, dtype=torch.bool, device=keys.device).tril(seen - count)
    attended = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
    )
    return attended[0].transpose(0, 1)
