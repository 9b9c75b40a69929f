"""Attention over tree-packed rows: each block attends to its ancestors and to itself.

It is registered as an attention implementation of transformers, so any model that accepts one can be tree-packed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from seeupo.models.tree import Block, TreeBatch

NAME = "seeupo_tree"


class BlockedAttention:
    """The attention blocks of a batch with their masks, which are the same in every layer."""

    def __init__(self, batch: TreeBatch, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = [[(block, _mask(block, dtype, device)) for block in blocks] for blocks in batch.blocks]
        self.length = length

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attend with queries [B, Hq, N, D] to keys and values [B, Hkv, N, D]; return [B, N, Hq, D]."""
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
    tree = BlockedAttention(batch, batch.input_ids.shape[1], model.dtype, model.device)
    # A mask with four dimensions is passed through unchanged; the real masks are in the blocks.
    return {"attention_mask": torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device), "tree": tree}
