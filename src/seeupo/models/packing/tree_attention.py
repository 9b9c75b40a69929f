"""Attention over tree-packed rows: each token attends to its ancestors and to itself.

It is registered as an attention implementation of transformers, so any model that accepts one can be tree-packed. Two
implementations give the same numbers: `BlockedAttention` computes one block of a tree after another;
`FlexAttention` is a single GPU kernel that skips what is masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from seeupo.models.packing.tree import Block, TreeBatch

NAME = "seeupo_tree"
MASK_BLOCK = 128
"""Number of queries and of keys in the parts of a mask that FlexAttention can skip."""
RECOMPILE_LIMIT = 64
"""Number of variants of FlexAttention to compile: by gradient mode, data type, and one or several rows."""


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
    """Attention along the trees of a batch; the masks are made in the first layer and are the same in every layer.

    Without `queries`, all tokens attend.
    """

    def __init__(self, batch: TreeBatch, queries: Queries | None = None) -> None:
        self.batch, self.queries = batch, queries
        self._attend: BlockedAttention | FlexAttention | None = None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attend with queries [B, Hq, S, D] to keys and values [B, Hkv, N, D]; return [B, S, Hq, D]."""
        # In mixed precision, rotary positions have turned queries and keys into float32.
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
        if self._attend is None:
            kind = FlexAttention if flex_is_faster(queries) else BlockedAttention
            self._attend = kind(self.batch, values.dtype, values.device, self.queries)
        return self._attend(queries, keys, values, scaling)


def flex_is_faster(queries: Tensor) -> bool:
    """Return whether to use FlexAttention for queries [B, H, N, D]: on GPUs, if its kernel supports data type and D.

    Rows must be longer than the parts of a mask that the kernel skips.
    """
    length, width = queries.shape[-2:]
    return queries.is_cuda and queries.dtype != torch.float64 and width >= 16 and length > MASK_BLOCK


class BlockedAttention:
    """Attention of one block of a tree after another, each to its ancestors and to itself.

    Rows are split into their blocks and joined again. With a slice per block, the backward pass would fill and add a
    tensor of the size of the whole batch for each of them.
    """

    def __init__(
        self, batch: TreeBatch, dtype: torch.dtype, device: torch.device, queries: Queries | None = None
    ) -> None:
        self.rows: list[list[_BlockPart]] = []
        for row, blocks in enumerate(batch.blocks):
            asking = None if queries is None else queries.tokens[row, : queries.counts[row]].cpu()
            numbers = {block.start: number for number, block in enumerate(blocks)}
            self.rows.append([_block_part(block, numbers, asking, dtype, device) for block in blocks])

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        rows = zip(self.rows, queries.split(1), keys.split(1), values.split(1), strict=True)
        return torch.cat([self._attend(*row, scaling) for row in rows]).transpose(1, 2)

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


class FlexAttention:
    """Attention of all tokens in one kernel, which PyTorch compiles for the mask of a tree."""

    def __init__(
        self, batch: TreeBatch, dtype: torch.dtype, device: torch.device, queries: Queries | None = None
    ) -> None:
        ends = batch.ends.to(device)
        rows, length = batch.ends.shape
        asking = torch.arange(length).expand(rows, length) if queries is None else queries.tokens
        asking = asking.to(device)

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            token = asking[row, query]
            return (key <= token) & (token < ends[row, key])

        size = asking.shape[1]
        self.mask = create_block_mask(sees, rows, None, size, length, device=device, BLOCK_SIZE=MASK_BLOCK)

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        attend = _flex_attention(compiled=queries.is_cuda)
        attended: Tensor = attend(queries, keys, values, block_mask=self.mask, scale=scaling, enable_gqa=True)
        return attended.transpose(1, 2)


@cache
def _flex_attention(*, compiled: bool) -> Any:
    # Shapes differ from batch to batch. With fullgraph, too many variants are an error, not a slow fallback.
    options: dict[str, Any] = {"dynamic": True, "fullgraph": True, "recompile_limit": RECOMPILE_LIMIT}
    return torch.compile(flex_attention, **options) if compiled else flex_attention


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
