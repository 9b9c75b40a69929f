"""Attention of the local sampler: prompts to prefill, and new tokens of rows to shared segments and private tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from seeupo.inference.kv_cache import CopiedSegment, NewSegment, NewTokens, RowCache
from seeupo.inference.prefix_tree import Segment

FEW_SCORES = 2**22
"""Number of scores of private tokens up to which plain products are at least as fast as PyTorch's kernel on the CPU.

The kernel multiplies small matrices one by one. It has no tensor of scores, so it is used where that would be large.
"""


class PrefillAttention:
    """Attention of many spans of new tokens: each to what precedes it, and causally to itself.

    A new segment comes before the segments below it and before the tokens of its rows. Short spans of rows come last
    and are computed together, because an operation for each would cost more.
    """

    def __init__(self, spans: Sequence[NewSegment | NewTokens], cache: RowCache) -> None:
        short = [span for span in spans if isinstance(span, NewTokens) and span.is_short]
        short.sort(key=lambda span: span.context.segment.order())
        self.long = [span for span in spans if isinstance(span, NewSegment) or not span.is_short]
        self.spans = [*self.long, *short]
        self.count = sum(len(span.tokens) for span in self.spans)
        self.short = RowAttention(cache, short) if short else None

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        attended = torch.empty_like(queries)
        first = 0
        for span in self.long:
            here = slice(first, first + len(span.tokens))
            parts = span.store(layer, keys[here].transpose(0, 1), values[here].transpose(0, 1))
            seen = (torch.cat(tables, 1) if len(tables) > 1 else tables[0] for tables in zip(*parts, strict=True))
            attended[here] = causal(queries[here], *seen)
            first = here.stop
        if self.short:
            attended[first:] = self.short(layer, queries[first:], keys[first:], values[first:])
        return attended


class RowAttention:
    """Attention of a few new tokens per row: to shared segments, jointly with other rows, and to private tokens.

    Attention to shared segments gives a result and the logarithm of its softmax sum. That logarithm is the score of the
    first private place, which is empty, so one softmax over the private places also weighs the shared result. Rows with
    common segments are neighbors.
    """

    def __init__(self, cache: RowCache, rows: Sequence[NewTokens]) -> None:
        self.cache = cache
        self.rows = len(rows)
        self.widest = max(len(row.tokens) for row in rows)
        self.places = 1 + max(row.start + len(row.tokens) for row in rows)
        cache.reserve(self.places - 1)
        keys = cache.keys
        device, dtype = keys.device, torch.promote_types(keys.dtype, torch.float32)
        numbers = [row.row for row in rows]
        self.whole = sorted(numbers) == list(range(self.rows))  # their keys and values need no copy
        slots = numbers if self.whole else range(self.rows)
        self.selected = torch.tensor(numbers, device=device)
        # Each new token's row, its slot among the rows, its number within the row, and its private place.
        table = [
            (row.row, slot, number, 1 + row.start + number)
            for row, slot in zip(rows, slots, strict=True)
            for number in range(len(row.tokens))
        ]
        self.row, self.slot, self.number, self.place = torch.tensor(table, device=device).unbind(1)
        self.in_order = self.widest == 1 and list(slots) == list(range(self.rows))
        self.segments = _shared_segments(rows)
        self.one_segment_each = all(len(row.context.segment.chain()) == 1 for row in rows)
        last_seen = torch.ones(self.rows, self.widest, dtype=torch.long, device=device)
        last_seen[self.slot, self.number] = self.place
        hidden = torch.arange(self.places, device=device) > last_seen[..., None]
        hidden[..., 0] = True  # until a score is there
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -math.inf)
        mask = mask.repeat_interleave(cache.repeat, 1)[:, None]  # [rows, 1, widest * repeat, places]
        heads = keys.shape[3]
        self.by_products = mask.numel() * heads <= FEW_SCORES or not keys.is_cpu or keys.dtype == torch.bfloat16
        if self.by_products:
            # The scores of shared tokens, which differ between heads, are written into the mask.
            mask = mask.expand(-1, heads, -1, -1).contiguous()
            self.shared_scores = mask.view(self.rows, heads, self.widest, -1, self.places)[..., :1]
            if self.in_order:
                self.shared_scores = self.shared_scores[:, :, 0]
            mask = mask.flatten(0, 1)
        self.mask = mask

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        count, kv_heads, head_dim = keys.shape
        queries = queries.view(count, kv_heads, -1, head_dim)
        own_keys, own_values = self._tables[layer]
        own_keys.index_put_((self.place, self.row), keys)
        own_values.index_put_((self.place, self.row), values)
        shared = self._attend_to_shared(layer, queries) if self.segments else None
        if self.by_products:
            return self._attend_by_products(layer, queries, shared).flatten(1, 2)
        return self._attend_by_kernel(layer, queries, shared).flatten(1, 2)

    @cached_property
    def _tables(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of all rows, [1 + S, rows, Hkv, D] per layer; taken when the cache has its final capacity."""
        return list(zip(self.cache.keys.unbind(), self.cache.values.unbind(), strict=True))

    @cached_property
    def _views(self) -> list[tuple[Tensor, Tensor]]:
        """Keys [rows * Hkv, D, places] and values [rows * Hkv, places, D] of the first rows, per layer."""
        tables = (self.cache.keys, self.cache.values)
        keys, values = (
            table[:, : self.places, : self.rows].permute(0, 2, 3, 1, 4).flatten(1, 2).unbind() for table in tables
        )
        return [(own_keys.transpose(1, 2), own_values) for own_keys, own_values in zip(keys, values, strict=True)]

    def _private(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys [rows * Hkv, D, places] and values [rows * Hkv, places, D]."""
        if self.whole:
            return self._views[layer]
        tables = (table[: self.places, self.selected] for table in self._tables[layer])
        keys, values = (table.permute(1, 2, 0, 3).flatten(0, 1) for table in tables)
        return keys.transpose(1, 2), values

    def _attend_to_shared(self, layer: int, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Attend with queries [N, Hkv, repeat, D] to all segments; return results of their shape and sums [..., 1]."""
        if self.one_segment_each:
            parts = [_attend_to_segment(segment, layer, queries[here]) for segment, here in self.segments]
            if len(parts) == 1:
                return parts[0]
            results, sums = zip(*parts, strict=True)
            return torch.cat(results), torch.cat(sums)
        attended = torch.zeros(queries.shape, dtype=self.mask.dtype, device=queries.device)
        totals = torch.full_like(attended[..., :1], -math.inf)
        for segment, here in self.segments:
            merge_(attended[here], totals[here], *_attend_to_segment(segment, layer, queries[here]))
        return attended, totals

    def _attend_by_products(self, layer: int, queries: Tensor, shared: tuple[Tensor, Tensor] | None) -> Tensor:
        """Attend with queries [N, Hkv, repeat, D] to the private tokens of their rows, and add what is shared."""
        keys, values = self._private(layer)
        if shared is not None and self.in_order:
            self.shared_scores.copy_(shared[1])
        elif shared is not None:
            self.shared_scores[self.slot, :, self.number] = shared[1]
        padded = self._pad(queries).reshape(len(keys), -1, queries.shape[-1])
        weights = scaled_scores(padded, keys, self.mask).softmax(-1)
        result = self._unpad(torch.bmm(weights.to(values.dtype), values)).to(self.mask.dtype)
        if shared is None:
            return result
        return result.addcmul_(shared[0], self._unpad(weights[..., :1]))

    def _attend_by_kernel(self, layer: int, queries: Tensor, shared: tuple[Tensor, Tensor] | None) -> Tensor:
        """Attend as `_attend_by_products` does, without a tensor of all scores."""
        keys, values = (table.unflatten(0, (self.rows, -1)) for table in self._private(layer))
        padded = self._pad(queries).flatten(2, 3)
        parts = partial_attention(padded, keys.transpose(2, 3), values, self.mask)
        result, total = (self._unpad(part.flatten(0, 1)) for part in parts)
        if shared is not None:
            merge_(result, total, *shared)
        return result

    def _pad(self, queries: Tensor) -> Tensor:
        """Return queries [N, Hkv, repeat, D] as [rows, Hkv, widest, repeat, D]."""
        if self.in_order:
            return queries.unsqueeze(2)
        padded = queries.new_zeros(self.rows, self.widest, *queries.shape[1:])
        padded[self.slot, self.number] = queries
        return padded.transpose(1, 2)

    def _unpad(self, padded: Tensor) -> Tensor:
        """Return the results [rows * Hkv, widest * repeat, ...] of the tokens, [N, Hkv, repeat, ...]."""
        shape = (self.rows, -1, self.widest, self.cache.repeat, padded.shape[-1])
        if self.in_order:
            return padded.view(self.rows, -1, *shape[3:])
        return padded.view(shape)[self.slot, :, self.number]


def _shared_segments(rows: Sequence[NewTokens]) -> list[tuple[Segment, slice]]:
    """Return the segments of all rows, each with its rows' new tokens, which are neighbors."""
    spans: dict[Segment, slice] = {}
    first = 0
    for row in rows:
        end = first + len(row.tokens)
        for segment in row.context.segment.chain():
            spans[segment] = slice(spans[segment].start if segment in spans else first, end)
        first = end
    return list(spans.items())


class StepAttention:
    """Attention of a whole step: first the tokens to prefill, then the new tokens of all rows."""

    def __init__(self, prefill: PrefillAttention, copied: Sequence[CopiedSegment], decode: RowAttention) -> None:
        self.prefill = prefill
        self.copied = copied
        self.decode = decode

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        count = self.prefill.count
        before = self.prefill(layer, queries[:count], keys[:count], values[:count]) if count else None
        for segment in self.copied:
            segment.copy(layer)
        if before is None:
            return self.decode(layer, queries, keys, values)
        after = self.decode(layer, queries[count:], keys[count:], values[count:])
        return torch.cat([before, after.to(before.dtype)])


def merge_(one: Tensor, one_total: Tensor, other: Tensor, other_total: Tensor) -> None:
    """Change attention over one part, and its logarithm of the softmax sum, to that over two parts, in place."""
    one.lerp_(other, (other_total - one_total).sigmoid())
    torch.logaddexp(one_total, other_total, out=one_total)


def _attend_to_segment(segment: Segment, layer: int, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Attend with queries [N, Hkv, repeat, D] to a segment; return results of their shape and sums [..., 1]."""
    count, kv_heads, repeat, head_dim = queries.shape
    # [Hkv, N * repeat, D] times [Hkv, S, D]: one matrix product for all tokens that follow the segment.
    together = queries.transpose(0, 1).reshape(1, kv_heads, -1, head_dim)
    result, total = partial_attention(together, segment.keys[layer][None], segment.values[layer][None])
    result, total = (part.view(kv_heads, count, repeat, -1).transpose(0, 1) for part in (result, total))
    return result, total


def partial_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return attention [R, H, Q, D] to keys and values [R, H, S, D] and its logarithms of softmax sums [R, H, Q, 1].

    The mask [R, 1 or H, Q, S] is added to the scores.
    """
    if keys.is_cpu and keys.dtype != torch.bfloat16:
        # `scaled_dot_product_attention` would not return the sums.
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        result, total = kernel(queries, keys, values, attn_mask=mask)
        return result, total[..., None]
    assert mask is None  # masked attention is computed by plain products there
    shape = queries.shape[:2]
    scores = scaled_scores(queries.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2))
    total = scores.logsumexp(-1, keepdim=True)
    result = torch.bmm((scores - total).exp_().to(values.dtype), values.flatten(0, 1)).to(scores.dtype)
    return result.unflatten(0, shape), total.unflatten(0, shape)


def scaled_scores(queries: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return queries [B, Q, D] times keys [B, D, S], scaled, plus mask [B, Q, S].

    For keys in bfloat16 the products are float32, as inside PyTorch's kernels: rounded products would change the
    softmax by percents.
    """
    scale = queries.shape[-1] ** -0.5
    if keys.dtype == torch.bfloat16:
        with torch.autocast(keys.device.type, enabled=False):
            return scaled_scores(queries.float(), keys.float(), mask)
    if mask is None:
        return torch.bmm(queries, keys).mul_(scale)
    return torch.baddbmm(mask, queries, keys, alpha=scale)


def causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend causally with the last N positions [N, Hq, D] of a sequence to its keys and values [Hkv, S, D]."""
    count, seen = len(queries), keys.shape[1]
    # From the start of a sequence, the kernel skips what no query sees.
    mask = torch.ones(count, seen, dtype=torch.bool, device=keys.device).tril(seen - count) if seen > count else None
    attended = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return attended[0].transpose(0, 1)
