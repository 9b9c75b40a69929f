"""Attention over tree-packed rows: each block of a row to its ancestors and to itself.

Registered with transformers as an attention implementation, so that any model which takes one can be tree-packed.
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
    """The blocks of a batch with their masks, which are the same in every layer."""

    def __init__(self, batch: TreeBatch, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = [[(block, _mask(block, dtype, device)) for block in blocks] for blocks in batch.blocks]
        self.length = length

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Queries [B, Hq, N, D] to keys and values [B, Hkv, N, D], as [B, N, Hq, D]."""
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
    """Additive mask [n, ancestors + n] of a block; None where plain causal attention says the same."""
    size = block.end - block.start
    before = sum(end - start for start, end in block.ancestors)
    if block.ends is None:
        if not before:
            return None
        allowed = torch.ones(size, size, dtype=torch.bool, device=device).tril()
    else:
        place = torch.arange(size, device=device)
        ends = torch.from_numpy(block.ends).to(device)
        allowed = (place[:, None] >= place) & (place[:, None] < ends)
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
    """What to pass to a model's forward so that it attends along the batch's trees.

    The model's attention implementation is set to ours, and stays so: a later backward pass may call it again. Without
    a tree it is transformers' own `sdpa`.
    """
    if model.config._attn_implementation != NAME:
        model.set_attn_implementation(NAME)
    tree = BlockedAttention(batch, batch.input_ids.shape[1], model.dtype, model.device)
    # A mask of four dimensions is taken as it is; ours are in the blocks.
    return {"attention_mask": torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=model.device), "tree": tree}
