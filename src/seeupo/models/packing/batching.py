"""Micro-batches of turns: tree-packed, or padded rows for models that cannot be tree-packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from seeupo.models.packing.tree import TreeBatch, pack_batches
from seeupo.types import Turn

Packing = Literal["tree", "padded"]


@dataclass(frozen=True)
class PaddedBatch:
    """One padded row per turn; `members` are the indices of the rows in the list of turns."""

    members: list[int]
    rows: list[Turn]


def micro_batches(
    turns: Sequence[Turn], packing: Packing, *, row_tokens: int, batch_tokens: int
) -> Iterator[TreeBatch | PaddedBatch]:
    """Yield batches of at most `batch_tokens` tokens, padding included; `row_tokens` limits a packed row."""
    if packing == "tree":
        yield from pack_batches(turns, row_tokens=row_tokens, batch_tokens=batch_tokens)
        return
    lengths = [len(turn.prompt_ids) + len(turn.action_ids) for turn in turns]
    group: list[int] = []
    for number in sorted(range(len(turns)), key=lambda number: -lengths[number]):
        if group and lengths[group[0]] * (len(group) + 1) > batch_tokens:
            yield PaddedBatch(group, [turns[member] for member in group])
            group = []
        group.append(number)
    if group:
        yield PaddedBatch(group, [turns[member] for member in group])
