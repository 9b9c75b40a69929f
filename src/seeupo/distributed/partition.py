"""Distribute turns over ranks, so that all have the same amount of work."""

from __future__ import annotations

from collections.abc import Sequence

from seeupo.models.packing.batching import Packing
from seeupo.models.packing.tree import pack_rows
from seeupo.types import Turn


def partition(turns: Sequence[Turn], ranks: int, packing: Packing, *, row_tokens: int) -> list[list[int]]:
    """Return the indices of each rank's turns, balanced by tokens to compute.

    Turns that share a prefix are packed into one row and stay together, so no token is computed on two ranks because of
    the partition. Rows are assigned in order of length, each to the rank with the fewest tokens so far.
    """
    if packing == "tree":
        work = [(len(row.tokens), list(row.members)) for row in pack_rows(turns, row_tokens=row_tokens)]
    else:
        work = [(len(turn.prompt_ids) + len(turn.action_ids), [index]) for index, turn in enumerate(turns)]
    parts: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for tokens, members in sorted(work, key=lambda item: (-item[0], item[1])):
        lightest = loads.index(min(loads))
        loads[lightest] += tokens
        parts[lightest] += members
    return [sorted(part) for part in parts]
