"""Tree packing: compute every distinct token of many turns once.

Turns share long prefixes: the system prompt, the tools and the task within a group, the history within a trajectory.
Their token sequences form a trie, whose nodes are laid out in rows in depth-first order: the descendants of a token
directly follow it. A token attends to its ancestors only and its position is its depth, so the result is the same as
with one row per turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seeupo.types import Turn
from seeupo.utils.option_checks import check_count

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """Several turns packed into one row of N distinct tokens.

    Attributes:
        members: Indices of the turns in the list that was packed.
        tokens, positions: [N] token ids, and their depths in the trie.
        ends: [N] the descendants of token i are the tokens i+1 ... ends[i]-1.
        paths: Per turn, [len(prompt) + len(action)] its tokens in the row.
        predictors: Per turn, [len(action)] the token after which each token of the action is predicted.
    """

    members: list[int]
    tokens: Ints
    positions: Ints
    ends: Ints
    paths: list[Ints]
    predictors: list[Ints]


def pack_rows(turns: Sequence[Turn], *, row_tokens: int) -> list[Row]:
    """Pack the turns into rows of at most `row_tokens` distinct tokens; a longer turn gets a separate row.

    Sequences are added in lexicographic order, in which neighbors share the longest prefixes; the prefix that one
    shares with its predecessor in the row is not stored again.
    """
    check_count("row_tokens", row_tokens, 1)
    for turn in turns:
        if not turn.prompt_ids:
            raise ValueError(f"turn {turn.key} has an empty prompt; its first action token has no context")
    sequences = [np.asarray(turn.prompt_ids + turn.action_ids, dtype=np.int64) for turn in turns]
    groups: list[list[int]] = []
    size = 0
    for number in sorted(range(len(turns)), key=lambda number: sequences[number].tolist()):
        length = len(sequences[number])
        shared = _common_prefix(sequences[groups[-1][-1]], sequences[number]) if groups else 0
        if groups and size + length - shared <= row_tokens:
            groups[-1].append(number)
            size += length - shared
        else:
            groups.append([number])
            size = length
    return [_pack_row(group, sequences, turns) for group in groups]


def _pack_row(members: list[int], sequences: Sequence[Ints], turns: Sequence[Turn]) -> Row:
    """Pack sequences, each of which shares a prefix with the one before, into a row."""
    tokens: list[Ints] = []
    positions: list[Ints] = []
    paths: list[Ints] = []
    subtrees: list[tuple[Ints, int]] = []
    last = path = np.empty(0, dtype=np.int64)
    size = 0
    for member in members:
        sequence = sequences[member]
        shared = _common_prefix(last, sequence)
        # The subtree below the branching point is complete: no later token can be its descendant.
        subtrees.append((path[shared:], size))
        path = np.concatenate([path[:shared], np.arange(size, size + len(sequence) - shared)])
        paths.append(path)
        tokens.append(sequence[shared:])
        positions.append(np.arange(shared, len(sequence)))
        size += len(sequence) - shared
        last = sequence
    ends = np.full(size, size)
    for nodes, end in subtrees:
        ends[nodes] = end
    return Row(
        members=members,
        tokens=np.concatenate(tokens),
        positions=np.concatenate(positions),
        ends=ends,
        paths=paths,
        predictors=[path[len(turns[member].prompt_ids) - 1 : -1] for member, path in zip(members, paths, strict=True)],
    )


def _common_prefix(one: Ints, other: Ints) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


@dataclass(frozen=True)
class Block:
    """An attention block: tokens start ... end-1 of a row, which attend to shared ancestors and among themselves.

    Attributes:
        ancestors: (start, end) of the parts of the row that all tokens of the block descend from.
        ends: [end - start] as in `Row`, counted from `start`; None if the block is a chain, in which each token
            descends from the one before.
    """

    start: int
    end: int
    ancestors: tuple[tuple[int, int], ...]
    ends: Ints | None


SMALL_TREE = 96
"""Maximum size of a tree that becomes a single block: a few masked products cost less than many small ones."""


def blocks_of(ends: Ints, start: int, end: int, ancestors: tuple[tuple[int, int], ...] = ()) -> Iterator[Block]:
    """Yield the trees in tokens start ... end-1 of a row as attention blocks, in the order of their tokens.

    A large tree is split where it branches, because no attention is needed between branches.
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
class LayerInput:
    """Hidden states [B, N, H] of the tokens of a batch: the input of the layer with this index."""

    layer: int
    states: Tensor


@dataclass(frozen=True)
class TreeBatch:
    """Packed rows, padded to the same length N, as input of a model.

    Attributes:
        members: Indices of the turns of all rows in the list that was packed.
        input_ids, position_ids: [B, N].
        ends: [B, N] as in `Row`; a token of the padding has no descendants.
        paths: Per turn, the positions of its tokens in the flattened [B * N] tokens.
        predictors: [n, L] for each token of a turn's action, the position in the flattened [B * N] tokens after which
            it is predicted; 0 in padding.
        targets: [n, L] tokens of the actions; 0 in padding.
        mask: [n, L] False in padding.
        lasts: [n] position of each turn's last token.
        start: Layer from which the model has to be computed, with its input; None for the whole model.
    """

    members: list[int]
    input_ids: Tensor
    position_ids: Tensor
    ends: Tensor
    blocks: list[list[Block]]
    paths: list[Ints]
    predictors: Tensor
    targets: Tensor
    mask: Tensor
    lasts: Tensor
    start: LayerInput | None = None


def pack_batches(turns: Sequence[Turn], *, row_tokens: int, batch_tokens: int) -> list[TreeBatch]:
    """Pack turns into rows, and rows of similar length into batches of at most `batch_tokens` tokens with padding."""
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

    members = [member for row in rows for member in row.members]
    paths = [number * length + path for number, row in enumerate(rows) for path in row.paths]
    positions = [number * length + nodes for number, row in enumerate(rows) for nodes in row.predictors]
    lengths = torch.tensor([len(row) for row in positions], dtype=torch.long)
    longest = int(lengths.max())
    return TreeBatch(
        members=members,
        input_ids=padded([row.tokens for row in rows], length),
        position_ids=padded([row.positions for row in rows], length),
        ends=torch.maximum(padded([row.ends for row in rows], length), torch.arange(1, length + 1)),
        blocks=[list(blocks_of(row.ends, 0, len(row.ends))) for row in rows],
        paths=paths,
        predictors=padded(positions, longest),
        targets=padded([np.asarray(turns[member].action_ids, dtype=np.int64) for member in members], longest),
        mask=torch.arange(longest) < lengths[:, None],
        lasts=torch.tensor([int(path[-1]) for path in paths]),
    )
