"""Keys, values and attention of the local sampler: shared segments of prompts, private rows, prefill and decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seeupo.engines.samplers.prefix_tree import Segment
from seeupo.models.decoder import Decoder

SHORT_TOKENS = 32
"""Length up to which the new tokens of a row are computed together with those of others, padded to the longest."""

FEW_SCORES = 2**22
"""Number of masked scores up to which plain products are at least as fast as PyTorch's fused kernel on the CPU.

The kernel multiplies small matrices one by one. It has no tensor of scores, so it is used where that would be large.
"""


@dataclass(eq=False)
class Context:
    """The computed part of a sequence: shared segments of a prompt, then private tokens with their keys and values.

    While the sequence is in the batch, its private keys and values are in its row of the cache; otherwise they are in
    `keys` and `values`, [S, Hkv, D] per layer.

    Attributes:
        segment: The last shared segment; the chain from the root to it precedes the private tokens.
        used: The clock of the prefix tree when the sequence left the batch.
        states: Hidden states that enter the first adapted layer, as in `Segment`.
    """

    segment: Segment
    tokens: list[int]
    used: int = 0
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.segment.end + len(self.tokens)

    def below_adapters(self, segment: Segment, tokens: list[int], layers: int) -> Context:
        """Return what another adapter can use of this context: its first layers, which have no adapters.

        `segment` ends where the shared part of this context does, in the tree of that adapter; what is missing in its
        chain is filled in. `tokens` are the first private tokens of this context.
        """
        own = self.segment.chain()
        for node in segment.chain():
            if not node.keys:
                for name, count in (("keys", layers), ("values", layers), ("states", 1)):
                    tables = [torch.cat([getattr(each, name)[layer] for each in own], 1) for layer in range(count)]
                    setattr(node, name, [table[:, node.start : node.end].clone() for table in tables])
        return Context(segment, tokens, keys=self.keys[:layers], values=self.values[:layers], states=self.states)


class RowCache:
    """Private keys and values of the rows, [S, rows, Hkv, D] per layer; the capacity S grows by doubling.

    A step reads the first tokens of all rows. They are neighbors in this order; with the rows first, attention to them
    took up to twice as long.

    Attributes:
        layers: Number of layers.
        states: With adapters above some layers without, hidden states [S, rows, 1, H], as in `Segment`.
        bytes_per_token: Size of what is kept of a token.
        repeat: Number of query heads that share keys and values.
    """

    def __init__(self, decoder: Decoder, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (64, rows, decoder.kv_heads, decoder.head_dim)
        self.repeat = decoder.query_heads // decoder.kv_heads
        self.bytes_per_token = 2 * decoder.num_layers * decoder.kv_heads * decoder.head_dim * dtype.itemsize
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(decoder.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(decoder.num_layers)]
        self.layers, self.first_adapted = decoder.num_layers, decoder.first_adapted
        self.states: list[Tensor] = []
        if self.first_adapted:
            own = torch.zeros(64, rows, 1, decoder.hidden_size, dtype=decoder.model.dtype, device=device)
            self.states, self.bytes_per_token = [own], self.bytes_per_token + decoder.hidden_size * own.itemsize

    def reserve(self, length: int) -> None:
        have = len(self.keys[0])
        if length > have:
            more = max(length, 2 * have) - have
            for tables in (self.keys, self.values, self.states):
                for layer, table in enumerate(tables):
                    tables[layer] = torch.nn.functional.pad(table, (0, 0) * 3 + (0, more))

    def insert(self, row: int, context: Context) -> None:
        length = len(context.tokens)
        self.reserve(length + 1)
        if length:
            tables = (self.keys, context.keys), (self.values, context.values), (self.states, context.states)
            for own, kept in tables:
                for layer, table in enumerate(kept):
                    own[layer][:length, row] = table[:length]

    def extract(self, row: int, context: Context) -> None:
        length = len(context.tokens)
        context.keys = [table[:length, row].clone() for table in self.keys]
        context.values = [table[:length, row].clone() for table in self.values]
        context.states = [table[:length, row].clone() for table in self.states]

    def move(self, source: int, target: int, length: int) -> None:
        for table in (*self.keys, *self.values, *self.states):
            table[:length, target] = table[:length, source]


@dataclass
class NewSegment:
    """A segment to compute; `resumed` if another adapter has computed the layers below the first adapted one."""

    segment: Segment

    def __post_init__(self) -> None:
        self.resumed = bool(self.segment.keys)

    @property
    def tokens(self) -> Sequence[int]:
        return self.segment.tokens

    @property
    def position(self) -> int:
        return self.segment.start

    @property
    def adapter(self) -> int:
        return self.segment.adapter

    def store(self, layer: int, keys: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Store new keys and values [Hkv, S, D], and return all that the tokens attend to."""
        self.segment.keys.append(keys.contiguous())
        self.segment.values.append(values.contiguous())
        return [(segment.keys[layer], segment.values[layer]) for segment in self.segment.chain()]

    def store_states(self, states: Tensor) -> None:
        """Store the states [S, H] that enter the first adapted layer."""
        self.segment.states = [states[None].clone()]

    def states(self) -> Tensor:
        return self.segment.states[0][0]


@dataclass
class NewTokens:
    """Tokens to compute in a row, after those of its context; `resumed` as in `NewSegment`."""

    cache: RowCache
    row: int
    context: Context
    tokens: Sequence[int]
    resumed: bool = False

    def __post_init__(self) -> None:
        self.start, self.position = len(self.context.tokens), self.context.length
        self.cache.reserve(self.start + len(self.tokens))

    @property
    def adapter(self) -> int:
        return self.context.segment.adapter

    @property
    def is_short(self) -> bool:
        return len(self.tokens) <= SHORT_TOKENS

    def store(self, layer: int, keys: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Store new keys and values [Hkv, S, D], and return all that the tokens attend to."""
        end = self.start + len(self.tokens)
        own = tuple(table[layer][:end, self.row].transpose(0, 1) for table in (self.cache.keys, self.cache.values))
        own[0][:, self.start :], own[1][:, self.start :] = keys, values
        shared = [(segment.keys[layer], segment.values[layer]) for segment in self.context.segment.chain()]
        return [*shared, (own[0], own[1])]

    def store_states(self, states: Tensor) -> None:
        """Store the states [S, H] that enter the first adapted layer."""
        self.states()[:] = states

    def states(self) -> Tensor:
        return self.cache.states[0][self.start : self.start + len(self.tokens), self.row, 0]


class CopiedSegment:
    """A short segment that rows hold as private tokens, because joint attention to it would cost more than it saves."""

    def __init__(self, cache: RowCache, segment: Segment, start: int, rows: Sequence[int]) -> None:
        self.cache, self.segment, self.start = cache, segment, start
        self.rows = torch.tensor(rows, device=cache.keys[0].device)

    def copy(self, layer: int) -> None:
        here = slice(self.start, self.start + len(self.segment.tokens))
        self.cache.keys[layer][here, self.rows] = self.segment.keys[layer].transpose(0, 1)[:, None]
        self.cache.values[layer][here, self.rows] = self.segment.values[layer].transpose(0, 1)[:, None]

    def copy_states(self) -> None:
        here = slice(self.start, self.start + len(self.segment.tokens))
        self.cache.states[0][here, self.rows] = self.segment.states[0].transpose(0, 1)[:, None]


class PrefillAttention:
    """Attention of many spans of new tokens: each to what precedes it, and causally to itself.

    A new segment comes before the segments below it. Resumed spans come first; they enter at the first adapted layer.
    Short spans of rows come last and are computed together, because an operation for each would cost more.

    Args:
        spans: Spans to compute; those of a row are after the segments that precede them.
        cache: The rows.
    """

    def __init__(self, spans: Sequence[NewSegment | NewTokens], cache: RowCache) -> None:
        self.resumed = [span for span in spans if span.resumed]
        entering = [span for span in spans if not span.resumed]
        short = [span for span in entering if isinstance(span, NewTokens) and span.is_short]
        short.sort(key=lambda span: span.context.segment.order())
        self.entering = [*(span for span in entering if isinstance(span, NewSegment) or not span.is_short), *short]
        self.spans, self.first_adapted = [*self.resumed, *self.entering], cache.first_adapted
        self.count = sum(len(span.tokens) for span in self.spans)
        rows = [RowTokens(span.row, span.context, span.start, len(span.tokens)) for span in short]
        self.short = RowAttention(cache, rows) if rows else None

    def spans_of(self, layer: int) -> Sequence[NewSegment | NewTokens]:
        """Return the spans that are computed in a layer."""
        return self.entering if layer < self.first_adapted else self.spans

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        attended, first, spans = torch.empty_like(queries), 0, self.spans_of(layer)
        for span in spans[: len(spans) - self.short.rows] if self.short else spans:
            here = slice(first, first + len(span.tokens))
            parts = span.store(layer, keys[here].transpose(0, 1), values[here].transpose(0, 1))
            seen = (torch.cat(tables, 1) if len(tables) > 1 else tables[0] for tables in zip(*parts, strict=True))
            attended[here] = causal(queries[here], *seen)
            first = here.stop
        if self.short:
            attended[first:] = self.short(layer, queries[first:], keys[first:], values[first:])
        return attended


@dataclass
class RowTokens:
    """New tokens of a row: the first of them has the private position `start`."""

    row: int
    context: Context
    start: int
    count: int


class RowAttention:
    """Attention of a few new tokens per row: to shared segments, jointly with other rows, and to private tokens.

    The parts are merged by the logarithms of their softmax sums, which gives the softmax over all of them.

    Args:
        rows: New tokens of different rows. Rows with common segments are neighbors.
    """

    def __init__(self, cache: RowCache, rows: Sequence[RowTokens]) -> None:
        self.cache = cache
        self.rows, self.widest = len(rows), max(row.count for row in rows)
        self.longest = max(row.start + row.count for row in rows)
        cache.reserve(self.longest)
        device, dtype = cache.keys[0].device, torch.promote_types(cache.keys[0].dtype, torch.float32)
        numbers = [row.row for row in rows]
        if sorted(numbers) == list(range(self.rows)):  # their keys and values need no copy
            self.private: slice | Tensor = slice(self.rows)
            places: Sequence[int] = numbers
        else:
            self.private, places = torch.tensor(numbers, device=device), range(self.rows)
        # Each new token's row, its place among the rows, its number within the row, and its private position.
        table = [
            (row.row, place, number, row.start + number)
            for row, place in zip(rows, places, strict=True)
            for number in range(row.count)
        ]
        self.row, self.place, self.number, self.position = torch.tensor(table, device=device).unbind(1)
        self.in_order = self.widest == 1 and list(places) == list(range(self.rows))
        last_seen = torch.zeros(self.rows, self.widest, dtype=torch.long, device=device)
        last_seen[self.place, self.number] = self.position
        beyond = torch.arange(self.longest, device=device) > last_seen[..., None]
        mask = torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill_(beyond, -math.inf)
        mask = mask.repeat_interleave(cache.repeat, 1)[:, None]  # [rows, 1, widest * repeat, S]
        heads = cache.keys[0].shape[2]
        if mask.numel() * heads <= FEW_SCORES:
            mask = mask.expand(-1, heads, -1, -1).contiguous()  # once for all layers
        self.mask = mask
        self.segments = _shared_segments(rows)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        count, kv_heads, head_dim = keys.shape
        queries = queries.view(count, kv_heads, -1, head_dim)
        self.cache.keys[layer][self.position, self.row] = keys
        self.cache.values[layer][self.position, self.row] = values
        attended, totals = self._attend_to_private(layer, queries)
        for segment, here in self.segments:
            # [Hkv, tokens * repeat, D] times [Hkv, S, D]: one matrix product for all tokens that follow the segment.
            together = queries[here].transpose(0, 1).reshape(1, kv_heads, -1, head_dim)
            own_keys, own_values = segment.keys[layer].unsqueeze(0), segment.values[layer].unsqueeze(0)
            result, total = partial_attention(together, own_keys, own_values)
            result, total = (part.view(kv_heads, -1, self.cache.repeat, part.shape[-1]) for part in (result, total))
            merge_(attended[here], totals[here], result.transpose(0, 1), total.transpose(0, 1))
        return attended.flatten(1, 2)

    def _attend_to_private(self, layer: int, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Attend with queries [N, Hkv, repeat, D] to the private tokens of their rows; return also the sums."""
        tables = self.cache.keys[layer], self.cache.values[layer]
        keys, values = (table[: self.longest, self.private].permute(1, 2, 0, 3) for table in tables)
        if self.in_order:
            return partial_attention(queries, keys, values, self.mask)
        _, kv_heads, repeat, head_dim = queries.shape
        padded = queries.new_zeros(self.rows, self.widest, kv_heads, repeat, head_dim)
        padded[self.place, self.number] = queries
        result, total = partial_attention(padded.transpose(1, 2).flatten(2, 3), keys, values, self.mask)
        shape = (self.widest, repeat)
        result, total = (part.unflatten(2, shape)[self.place, :, self.number] for part in (result, total))
        return result, total


def _shared_segments(rows: Sequence[RowTokens]) -> list[tuple[Segment, slice]]:
    """Return the segments of all rows, each with its rows' new tokens, which are neighbors."""
    found: dict[Segment, tuple[int, int]] = {}
    first = 0
    for row in rows:
        for segment in row.context.segment.chain():
            found[segment] = (found.get(segment, (first, first))[0], first + row.count)
        first += row.count
    return [(segment, slice(*span)) for segment, span in found.items()]


class StepAttention:
    """Attention of a whole step: first the tokens to prefill, then the new tokens of all rows."""

    def __init__(self, prefill: PrefillAttention, copied: Sequence[CopiedSegment], decode: RowAttention) -> None:
        self.prefill, self.copied, self.decode = prefill, copied, decode

    def enter_adapted(self, states: Tensor) -> Tensor:
        """Store the states of new tokens that enter the first adapted layer, and return them after resumed ones."""
        first, decode = 0, self.decode
        for span in self.prefill.entering:
            span.store_states(states[first : first + len(span.tokens)])
            first += len(span.tokens)
        for segment in self.copied:
            segment.copy_states()
        decode.cache.states[0][decode.position, decode.row, 0] = states[first:]
        return torch.cat([*(span.states() for span in self.prefill.resumed), states])

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        count = sum(len(span.tokens) for span in self.prefill.spans_of(layer))
        before = self.prefill(layer, queries[:count], keys[:count], values[:count]) if count else None
        for segment in self.copied:
            segment.copy(layer)
        after = self.decode(layer, queries[count:], keys[count:], values[count:])
        return after if before is None else torch.cat([before, after.to(before.dtype)])


def merge_(one: Tensor, one_total: Tensor, other: Tensor, other_total: Tensor) -> None:
    """Change attention over one part, and its logarithm of the softmax sum, to that over two parts, in place."""
    one.lerp_(other, (other_total - one_total).sigmoid())
    torch.logaddexp(one_total, other_total, out=one_total)


def partial_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend with queries [R, H, Q, D] to keys and values [R, H, S, D]; mask [R, 1 or H, Q, S] is added to the scores.

    Returns the result [R, H, Q, D] and the logarithm of the softmax sum [R, H, Q, 1]. For keys in bfloat16, queries and
    products are float32, as inside PyTorch's kernels: rounded products would change the softmax by percents.
    """
    if keys.dtype == torch.bfloat16:
        with torch.autocast(keys.device.type, enabled=False):
            return _attend_by_products(queries.float(), keys.float(), values, mask)
    few = mask is not None and mask.numel() // mask.shape[1] * keys.shape[1] <= FEW_SCORES
    if few or not keys.is_cpu:
        return _attend_by_products(queries, keys, values, mask)
    # `scaled_dot_product_attention` would not return the sums.
    result, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, attn_mask=mask)
    return result, total[..., None]


def _attend_by_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attend as `partial_attention` does, with one product for all scores and one for all results."""
    rows, heads, scale = *queries.shape[:2], keys.shape[-1] ** -0.5
    both = queries.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)
    if mask is None:
        scores = torch.bmm(*both).mul_(scale)
    else:
        scores = torch.baddbmm(mask.expand(-1, heads, -1, -1).flatten(0, 1), *both, alpha=scale)
    weights = scores.softmax(-1)
    # The largest weight is exp(top - total), where top is the largest score.
    total = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log_()
    result = torch.bmm(weights.to(values.dtype), values.flatten(0, 1)).to(queries.dtype)
    return result.unflatten(0, (rows, heads)), total.unflatten(0, (rows, heads))


def causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend causally with the last N positions [N, Hq, D] of a sequence to its keys and values [Hkv, S, D]."""
    count, seen = len(queries), keys.shape[1]
    # From the start of a sequence, the kernel skips what no query sees.
    mask = torch.ones(count, seen, dtype=torch.bool, device=keys.device).tril(seen - count) if seen > count else None
    attended = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return attended[0].transpose(0, 1)
