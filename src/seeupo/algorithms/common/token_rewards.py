"""Values per action token, one row per trajectory, for algorithms with token-level advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import Batch, LogProbs
from seeupo.core.advantages import NO_SPREAD
from seeupo.types import Turn, TurnKey


def concatenate_turns(batch: Batch, per_turn: Mapping[TurnKey, Tensor]) -> list[Tensor]:
    """Concatenate the rows [len(action)] of each trajectory's turns, in float64."""
    return [
        torch.cat([torch.empty(0, dtype=torch.float64), *(per_turn[turn.key].double() for turn in turns)])
        for turns in batch.turns_of.values()
    ]


def split_into_turns(batch: Batch, rows: Sequence[Tensor]) -> dict[TurnKey, Tensor]:
    """Split one row per trajectory into one row per turn; the inverse of `concatenate_turns`."""
    parts: dict[TurnKey, Tensor] = {}
    for trajectory, row in zip(batch.trajectories, rows, strict=True):
        lengths = [len(turn.action_ids) for turn in trajectory.turns]
        parts |= {turn.key: part for turn, part in zip(trajectory.turns, row.split(lengths), strict=True)}
    return parts


def standardize(rows: Sequence[Tensor], counts: Tensor) -> list[Tensor]:
    """Return rows with mean 0 and standard deviation 1 over all tokens, weighted by the trajectories' counts [N]."""
    values = torch.cat(list(rows))
    weights = torch.cat([count.expand(len(row)) for row, count in zip(rows, counts, strict=True)])
    if len(values) == 0:
        return list(rows)
    mean = (weights * values).sum() / weights.sum()
    deviation = ((weights * (values - mean) ** 2).sum() / weights.sum()).sqrt()
    if deviation < NO_SPREAD:
        return [torch.zeros_like(row) for row in rows]
    return [(row - mean) / deviation for row in rows]


def row_means(rows: Sequence[Tensor]) -> Tensor:
    """Return the mean [N] of each row; 0 for an empty one."""
    return torch.stack([row.mean() if len(row) else row.sum() for row in rows])


def row_norms(rows: Sequence[Tensor]) -> Tensor:
    """Return the sum of absolute values [N] of each row."""
    return torch.stack([row.abs().sum() for row in rows])


def kl_penalties(turns: Sequence[Turn], old: LogProbs, reference: LogProbs) -> dict[TurnKey, Tensor]:
    """Return log pi_k - log pi_ref of each token, whose expectation is KL(pi_k || pi_ref)."""
    return {turn.key: old[turn.key] - reference[turn.key] for turn in turns}
