"""Attention over tree-packed rows: each token attends to its ancestors and to itself.

It is registered as an attention implementation of transformers, so any model that accepts one can be tree-packed. Two
implementations give the same numbers: `BlockedAttention` computes one block of a tree after another;
`FlexAttention` is a single GPU kernel that skips what is masked.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from seeupo.models.tree import Block, TreeBatch

NAME = "seeupo_tree"
MASK_BLOCK = 128
"""Number of queries and of keys in the parts of a mask that FlexAttention can skip."""
RECOMPILE_LIMIT = 64
"""Number of variants of FlexAttention to compile: by gradient mode, data type, and one or several rows."""


class TreeAttention:
    """Attention along the trees of a batch; the masks are made in the first layer and are the same in every layer."""

    def __init__(self, batch: TreeBatch) -> None:
        self.batch = batch
        self._attend: BlockedAttention | FlexAttention | None = None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attend with queries [B, Hq, N, D] to keys and values [B, Hkv, N, D]; return [B, N, Hq, D]."""
        # In mixed precision, rotary positions have turned queries and keys into float32.
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
        if self._attend is None:
            chosen = FlexAttention if flex_is_faster(queries) else BlockedAttention
            self._attend = chosen(self.batch, values.dtype, values.device)
        return self._attend(queries, keys, values, scaling)


def flex_is_faster(queries: Tensor) -> bool:
    """Return whether to use FlexAttention for queries [B, H, N, D]: on GPUs, if its kernel supports data type and D.

    Rows must be longer than the parts of a mask that the kernel skips.
    """
    length, width = queries.shape[-2:]
    return queries.is_cuda and queries.dtype != torch.float64 and width >= 16 and length > MASK_BLOCK


class BlockedAttention:
    """Attention of one block of a tree after another, each to its ancestors and to itself."""

    def __init__(self, batch: TreeBatch, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = [[(block, _mask(block, dtype, device)) for block in blocks] for blocks in batch.blocks]
        self.length = batch.input_ids.shape[1]

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        attended = []
        for row, blocks in enumerate(self.rows):
            parts = []
            for block, mask in blocks:
                seen = [*block.ancestors, (block.start, block.end)]
                parts.append(
                    scaled_dot_product_attention(
                        queries[row : row + 1, :, block.start : block.end],
                        torch.cat([keys[row : row + 1, :, start:end] for start, end in seen], 2),
                        torch.cat([values[row : row + 1, :, start:end] for start, end in seen], 2),
                        attn_mask=mask,
                        is_causal=mask is None,
                        scale=scaling,
                        enable_gqa=True,
                    )
                )
            padding = self.length - blocks[-1][0].end
            if padding:
                parts.append(torch.zeros_like(queries[row : row + 1, :, :padding]))
            attended.append(torch.cat(parts, 2))
        return torch.cat(attended).transpose(1, 2)


def _mask(block: Block, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Return the additive mask [n, ancestors + n] of a block; None if plain causal attention is equivalent."""
    size = block.end - block.start
    before = sum(end - start for start, end in block.ancestors)
    if block.ends is None:
        if not before:
            return None
        allowed = torch.ones(size, size, dtype=torch.bool, device=device).tril()
    else:
        index = torch.arange(size, device=device)
        ends = torch.from_numpy(block.ends).to(device)
        allowed = (index[:, None] >= index) & (index[:, None] < ends)
    mask = torch.zeros(size, before + size, dtype=dtype, device=device)
    mask[:, before:].masked_fill_(~allowed, -torch.inf)
    return mask


class FlexAttention:
    """Attention of all tokens in one kernel, which PyTorch compiles for the mask of a tree."""

    def __init__(self, batch: TreeBatch, dtype: torch.dtype, device: torch.device) -> None:
        ends = batch.ends.to(device)

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[row, key])

        rows, length = batch.ends.shape
        self.mask = create_block_mask(sees, rows, None, length, length, device=device, BLOCK_SIZE=MASK_BLOCK)

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
    tree = options.pop("tree", None)
    if tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    return tree(query, key, value, scaling), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def tree_attention(model: PreTrainedModel, batch: TreeBatch) -> dict[str, Any]:
    """Return keyword arguments for a model's forward pass that make it attend along the trees of a batch.

    The model's attention implementation is replaced permanently, because a later backward pass may call it again.
    Without a tree it is equivalent to `sdpa`.
    """
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)
    # A mask with four dimensions is passed through unchanged; the real masks are those of the trees.
    mask = torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device)
    return {"attention_mask": mask, "tree": TreeAttention(batch)}
