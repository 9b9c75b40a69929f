"""Attention over tree-packed rows: each token attends to its ancestors and to itself.

It is registered as an attention implementation of transformers, so any model that accepts one can be tree-packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from seeupo.models.packing.tree import Block, TreeBatch

NAME = "seeupo_tree"


@dataclass(frozen=True)
class Queries:
    """The tokens of a batch that attend, if not all of them do: some of each row, in order.

    Attributes:
        tokens: [B, S] positions in the row; 0 in padding.
        counts: Number of tokens per row.
    """

    tokens: Tensor
    counts: list[int]


class TreeAttention:
    """Attention along the trees of a batch: one block after another, each to its ancestors and to itself.

    Rows are split into their blocks and joined again. With a slice per block, the backward pass would fill and add a
    tensor of the size of the whole batch for each of them. The masks are made in the first layer and are the same in
    every layer. Without `queries`, all tokens attend.
    """

    def __init__(self, batch: TreeBatch, queries: Queries | None = None) -> None:
        self.batch, self.queries = batch, queries
        self._rows: list[list[_BlockPart]] = []

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attend with queries [B, Hq, S, D] to keys and values [B, Hkv, N, D]; return [B, S, Hq, D]."""
        # In mixed precision, rotary positions have turned queries and keys into float32.
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
        if not self._rows:
            self._rows = [self._parts(row, values) for row in range(len(self.batch.blocks))]
        rows = zip(self._rows, queries.split(1), keys.split(1), values.split(1), strict=True)
        return torch.cat([self._attend(*row, scaling) for row in rows]).transpose(1, 2)

    def _parts(self, row: int, values: Tensor) -> list[_BlockPart]:
        """Return the blocks of a row, with masks of the data type and device of the values."""
        blocks, queries = self.batch.blocks[row], self.queries
        asking = None if queries is None else queries.tokens[row, : queries.counts[row]].cpu()
        numbers = {block.start: number for number, block in enumerate(blocks)}
        return [_block_part(block, numbers, asking, values.dtype, values.device) for block in blocks]

    def _attend(self, parts: list[_BlockPart], queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attend in one row; padding attends to nothing."""
        asking = _split(queries, [part.queries for part in parts])
        keys_by_block, values_by_block = (_split(tensor, [part.tokens for part in parts]) for tensor in (keys, values))
        attended = [
            scaled_dot_product_attention(
                asking[number],
                _join([keys_by_block[block] for block in part.seen]),
                _join([values_by_block[block] for block in part.seen]),
                attn_mask=part.mask,
                is_causal=part.mask is None,
                scale=scaling,
                enable_gqa=True,
            )
            for number, part in enumerate(parts)
            if part.queries
        ]
        return _join([*attended, torch.zeros_like(asking[-1])])


def _split(row: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Split a row [1, H, N, D] into parts of these sizes and the padding after them."""
    parts: tuple[Tensor, ...] = row.split([*sizes, row.shape[2] - sum(sizes)], 2)
    return parts


def _join(parts: list[Tensor]) -> Tensor:
    parts = [part for part in parts if part.shape[2]] or parts[:1]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


class _BlockPart(NamedTuple):
    """A block of a row: the numbers of its tokens and queries, of the blocks that these see, and their mask.

    Without a mask attention is causal.
    """

    tokens: int
    queries: int
    seen: list[int]
    mask: Tensor | None


def _block_part(
    block: Block, numbers: dict[int, int], asking: Tensor | None, dtype: torch.dtype, device: torch.device
) -> _BlockPart:
    """Return a block with its queries, which are some of the queries `asking` of the row.

    `numbers` are the numbers of the row's blocks by the position of their first token.
    """
    seen, size = [*(numbers[start] for start, _ in block.ancestors), numbers[block.start]], block.end - block.start
    if asking is None:
        return _BlockPart(size, size, seen, _mask(block, None, dtype, device))
    start, end = torch.searchsorted(asking, torch.tensor([block.start, block.end])).tolist()
    mask = _mask(block, asking[start:end] - block.start, dtype, device) if end > start else None
    return _BlockPart(size, end - start, seen, mask)


def _mask(block: Block, asking: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Return the additive mask [q, ancestors + n] of the queries in a block; None if causal attention is equivalent.

    `asking` [q] are the tokens that attend, counted from the start of the block; None for all n.
    """
    size = block.end - block.start
    before = sum(end - start for start, end in block.ancestors)
    if asking is None and block.ends is None and not before:
        return None
    index = torch.arange(size, device=device)
    queries = index if asking is None else asking.to(device)
    allowed = queries[:, None] >= index
    if block.ends is not None:
        allowed &= queries[:, None] < torch.from_numpy(block.ends).to(device)
    mask = torch.zeros(len(queries), before + size, dtype=dtype, device=device)
    mask[:, before:].masked_fill_(~allowed, -torch.inf)
    return mask


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *, scaling: float, **options: Any
) -> tuple[Tensor, Any]:
    tree, context = options.pop("tree", None), options.pop("context", None)
    if tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    if context is not None:
        norm, states, cos, sin = context
        key, value = keys_and_values(module, norm(states), cos, sin)
    return tree(query, key, value, scaling), None


def keys_and_values(attention: Any, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values [B, Hkv, N, D] of an attention module for normed hidden states [B, N, H].

    `cos` and `sin` [B, N, D] are the rotary tables of their positions.
    """
    shape = (*states.shape[:-1], -1, attention.head_dim)
    keys, values = attention.k_proj(states).view(shape), attention.v_proj(states).view(shape)
    if hasattr(attention, "k_norm"):
        keys = attention.k_norm(keys)
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    first, second = keys.chunk(2, -1)
    keys = keys * cos + torch.cat([-second, first], -1) * sin
    return keys.transpose(1, 2), values.transpose(1, 2)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def use_tree_attention(model: PreTrainedModel) -> None:
    """Make the model attend along trees if it gets the keyword argument `tree`; otherwise it attends as with `sdpa`.

    The attention implementation is replaced permanently, because a later backward pass may call it again.
    """
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)
