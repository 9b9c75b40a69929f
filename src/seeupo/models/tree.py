"""Tree packing: every distinct token of many turns once.

Samples share long prefixes: the system prompt, the tools and the task in a group, the history in a trajectory. Their
token sequences are put into a trie, whose nodes are laid out in rows in depth-first order, so that the descendants of a
token are those right behind it. A token attends to its ancestors only and has its depth as position: it sees exactly
what it would see in a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seeupo.types import Turn

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """Some turns as one row of N distinct tokens.

    Attributes:
        turns: which turns, as numbers in the list that was packed.
        tokens, positions: [N] token ids, and their depths in the trie.
        ends: [N] the descendants of token i are the tokens i+1 ... ends[i]-1.
        predictors: per turn, [len(action)] the token behind which each token of its action is predicted.
        lasts: per turn, its last token.
    """

    turns: list[int]
    tokens: Ints
    positions: Ints
    ends: Ints
    predictors: list[Ints]
    lasts: list[int]


def pack_rows(turns: Sequence[Turn], *, row_tokens: int) -> list[Row]:
    """Pack the turns into rows of at most `row_tokens` distinct tokens; a longer turn has a row of its own.

    Sequences are taken in lexicographic order, in which neighbours share the longest prefixes; what one shares with its
    predecessor in the row is not stored again.
    """
    if row_tokens < 1:
        raise ValueError(f"row_tokens is {row_tokens}; it must be at least 1")
    sequences = [np.asarray(turn.prompt_ids + turn.action_ids, dtype=np.int64) for turn in turns]
    for turn in turns:
        if not turn.prompt_ids:
            raise ValueError(f"turn {turn.key} has a prompt without tokens; its first action token has no condition")
    order = sorted(range(len(turns)), key=lambda number: sequences[number].tolist())
    rows: list[Row] = []
    building: _Builder | None = None
    for number in order:
        if building is None or building.size_with(sequences[number]) > row_tokens:
            if building is not None:
                rows.append(building.finish())
            building = _Builder()
        building.add(number, sequences[number], len(turns[number].prompt_ids))
    if building is not None:
        rows.append(building.finish())
    return rows


class _Builder:
    """A row while sequences are added to it, each sharing a prefix with the one before."""

    def __init__(self) -> None:
        self.size = 0
        self.turns: list[int] = []
        self.tokens: list[Ints] = []
        self.positions: list[Ints] = []
        self.predictors: list[Ints] = []
        self.lasts: list[int] = []
        self.ends: list[tuple[Ints, int]] = []
        self.last = np.empty(0, dtype=np.int64)
        self.path = np.empty(0, dtype=np.int64)

    def shared_with_last(self, sequence: Ints) -> int:
        length = min(len(self.last), len(sequence))
        different = np.flatnonzero(self.last[:length] != sequence[:length])
        return int(different[0]) if len(different) else length

    def size_with(self, sequence: Ints) -> int:
        return self.size + len(sequence) - self.shared_with_last(sequence)

    def add(self, number: int, sequence: Ints, prompt_length: int) -> None:
        shared = self.shared_with_last(sequence)
        # What hangs below the branching point is complete: no later token can be its descendant.
        self.ends.append((self.path[shared:], self.size))
        fresh = np.arange(self.size, self.size + len(sequence) - shared)
        self.path = np.concatenate([self.path[:shared], fresh])
        self.tokens.append(sequence[shared:])
        self.positions.append(np.arange(shared, len(sequence)))
        self.size += len(fresh)
        self.last = sequence
        self.turns.append(number)
        self.predictors.append(self.path[prompt_length - 1 : len(sequence) - 1])
        self.lasts.append(int(self.path[-1]))

    def finish(self) -> Row:
        self.ends.append((self.path, self.size))
        ends = np.empty(self.size, dtype=np.int64)
        for nodes, end in self.ends:
            ends[nodes] = end
        return Row(
            turns=self.turns,
            tokens=np.concatenate(self.tokens),
            positions=np.concatenate(self.positions),
            ends=ends,
            predictors=self.predictors,
            lasts=self.lasts,
        )


@dataclass(frozen=True)
class Block:
    """Tokens start ... end-1 of a row, which attend to the ancestors that they all share, and among themselves.

    Attributes:
        ancestors: (start, end) of stretches of the row that all tokens of the block descend from.
        ends: [end - start] as in `Row`, counted from `start`; None if the block is a chain, in which each token
            descends from the one before.
    """

    start: int
    end: int
    ancestors: tuple[tuple[int, int], ...]
    ends: Ints | None


SMALL_TREE = 96
"""A tree of up to this many tokens is one block: a few masked products cost less than many small ones."""


def blocks_of(ends: Ints, start: int, end: int, ancestors: tuple[tuple[int, int], ...] = ()) -> Iterator[Block]:
    """The trees that stand in tokens start ... end-1 of a row, as blocks in order of their tokens.

    A long tree is taken apart where it branches: branches cannot see one another, and so cost one another nothing.
    """
    while start < end:
        tree_end = int(ends[start])
        branching = np.flatnonzero(ends[start:tree_end] != tree_end)
        if len(branching) == 0:
            yield Block(start, tree_end, ancestors, None)
        elif tree_end - start <= SMALL_TREE:
            yield Block(start, tree_end, ancestors, ends[start:tree_end] - start)
        else:
            trunk_end = start + int(branching[0])
            yield Block(start, trunk_end, ancestors, None)
            yield from blocks_of(ends, trunk_end, tree_end, (*ancestors, (start, trunk_end)))
        start = tree_end


@dataclass(frozen=True)
class TreeBatch:
    """Rows padded to the same length N, ready for a model.

    Attributes:
        turns: the turns of all rows, as numbers in the list that was packed.
        input_ids, position_ids: [B, N].
        blocks: per row, which tokens attend to which.
        predictors: [n, L] for each turn and token of its action the place in the flattened [B * N] tokens behind
            which it is predicted; 0 where there is no such token.
        targets: [n, L] the action's tokens; 0 likewise.
        mask: [n, L] where there is one.
        lasts: [n] the place of each turn's last token.
    """

    turns: list[int]
    input_ids: Tensor
    position_ids: Tensor
    blocks: list[list[Block]]
    predictors: Tensor
    targets: Tensor
    mask: Tensor
    lasts: Tensor


def pack_batches(turns: Sequence[Turn], *, row_tokens: int, batch_tokens: int) -> list[TreeBatch]:
    """Rows of similar length side by side, with at most `batch_tokens` tokens (padding included) in a batch."""
    rows = sorted(pack_rows(turns, row_tokens=row_tokens), key=lambda row: -len(row.tokens))
    groups: list[list[Row]] = []
    for row in rows:
        if groups and len(groups[-1][0].tokens) * (len(groups[-1]) + 1) <= batch_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [_batch(group, turns) for group in groups]


def _batch(rows: Sequence[Row], turns: Sequence[Turn]) -> TreeBatch:
    length = len(rows[0].tokens)

    def padded(values: Sequence[Ints], width: int) -> Tensor:
        table = np.zeros((len(values), width), dtype=np.int64)
        for number, value in enumerate(values):
            table[number, : len(value)] = value
        return torch.from_numpy(table)

    members = [member for row in rows for member in row.turns]
    places = [number * length + nodes for number, row in enumerate(rows) for nodes in row.predictors]
    lengths = torch.tensor([len(place) for place in places], dtype=torch.long)
    longest = int(lengths.max())
    return TreeBatch(
        turns=members,
        input_ids=padded([row.tokens for row in rows], length),
        position_ids=padded([row.positions for row in rows], length),
        blocks=[list(blocks_of(row.ends, 0, len(row.ends))) for row in rows],
        predictors=padded(places, longest),
        targets=padded([np.asarray(turns[member].action_ids, dtype=np.int64) for member in members], longest),
        mask=torch.arange(longest) < lengths[:, None],
        lasts=torch.tensor([number * length + last for number, row in enumerate(rows) for last in row.lasts]),
    )
