"""Micro-batches of turns: tree-packed, or padded rows for models that cannot be tree-packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from seeupo.core.ratios import length_mask
from seeupo.models.packing.tree import TreeBatch, pack_batches
from seeupo.types import Turn

Packing = Literal["tree", "padded"]


@dataclass(frozen=True)
class PaddedBatch:
    """One padded row per turn; `members` are the indices of the rows in the list of turns."""

    members: list[int]
    rows: list[Turn]


def padded_inputs(turns: Sequence[Turn], device: torch.device) -> dict[str, Any]:
    """Return a model's arguments for one padded row per turn."""
    rows = [torch.tensor(turn.prompt_ids + turn.action_ids) for turn in turns]
    seen = length_mask(torch.tensor([len(row) for row in rows])).long()
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids.to(device), "attention_mask": seen.to(device), "use_cache": False}


def action_mask(turns: Sequence[Turn], device: torch.device) -> Tensor:
    """Return the mask [n, L] of the turns' action tokens, padded on the right."""
    return length_mask(torch.tensor([len(turn.action_ids) for turn in turns])).to(device)


def micro_batches(
    turns: Sequence[Turn], packing: Packing, *, row_tokens: int, batch_tokens: int
) -> Sequence[TreeBatch | PaddedBatch]:
    """Return batches of at most `batch_tokens` tokens, padding included; `row_tokens` limits a packed row."""
    if packing == "tree":
        return pack_batches(turns, row_tokens=row_tokens, batch_tokens=batch_tokens)
    lengths = [len(turn.prompt_ids) + len(turn.action_ids) for turn in turns]
    groups: list[list[int]] = []
    for number in sorted(range(len(turns)), key=lambda number: -lengths[number]):
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= batch_tokens:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [PaddedBatch(group, [turns[member] for member in group]) for group in groups]
