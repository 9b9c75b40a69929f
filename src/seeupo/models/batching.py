"""Samples in micro-batches: tree-packed, or in padded rows for models that cannot be packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from seeupo.models.tree import TreeBatch, pack_batches
from seeupo.types import Sample

Packing = Literal["tree", "padded"]


@dataclass(frozen=True)
class PaddedBatch:
    """A row per sample; `samples` are their numbers in the list that was packed."""

    samples: list[int]
    rows: list[Sample]


def micro_batches(
    samples: Sequence[Sample], packing: Packing, *, row_tokens: int, batch_tokens: int
) -> Iterator[TreeBatch | PaddedBatch]:
    """The samples in batches of at most `batch_tokens` tokens, padding included; `row_tokens` bounds a packed row."""
    if packing == "tree":
        yield from pack_batches(samples, row_tokens=row_tokens, batch_tokens=batch_tokens)
        return
    lengths = [len(sample.prompt_ids) + len(sample.action_ids) for sample in samples]
    group: list[int] = []
    for number in sorted(range(len(samples)), key=lambda number: -lengths[number]):
        if group and lengths[group[0]] * (len(group) + 1) > batch_tokens:
            yield PaddedBatch(group, [samples[member] for member in group])
            group = []
        group.append(number)
    if group:
        yield PaddedBatch(group, [samples[member] for member in group])
