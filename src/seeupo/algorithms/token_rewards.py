"""Numbers per action token, trajectory by trajectory: what algorithms need that tell tokens apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seeupo.algorithms.batch import Batch, LogProbs
from seeupo.core.advantages import NO_SPREAD
from seeupo.types import Turn, TurnKey


def over_tokens(batch: Batch, per_turn: Mapping[TurnKey, Tensor]) -> list[Tensor]:
    """Per trajectory, the rows [len(action)] of its turns one behind the other, in float64."""
    return [
        torch.cat([torch.empty(0, dtype=torch.float64), *(per_turn[turn.key].double() for turn in turns)])
        for turns in batch.turns_of.values()
    ]


def cut_into_turns(batch: Batch, rows: Sequence[Tensor]) -> dict[TurnKey, Tensor]:
    """The inverse: rows over all tokens of a trajectory, cut where its turns end."""
    cut: dict[TurnKey, Tensor] = {}
    for trajectory, row in zip(batch.trajectories, rows, strict=True):
        lengths = [len(turn.action_ids) for turn in trajectory.turns]
        cut |= {turn.key: part for turn, part in zip(trajectory.turns, row.split(lengths), strict=True)}
    return cut


def standardized(rows: Sequence[Tensor], counts: Tensor) -> list[Tensor]:
    """Rows with mean 0 and deviation 1 over all their tokens, each as often as its trajectory [N] counts."""
    values = torch.cat(list(rows))
    weights = torch.cat([count.expand(len(row)) for row, count in zip(rows, counts, strict=True)])
    if len(values) == 0:
        return list(rows)
    mean = (weights * values).sum() / weights.sum()
    deviation = ((weights * (values - mean) ** 2).sum() / weights.sum()).sqrt()
    if deviation < NO_SPREAD:
        return [torch.zeros_like(row) for row in rows]
    return [(row - mean) / deviation for row in rows]


def means_of(rows: Sequence[Tensor]) -> Tensor:
    """The mean [N] of each row; 0 for one without tokens."""
    return torch.stack([row.mean() if len(row) else row.sum() for row in rows])


def sizes_of(rows: Sequence[Tensor]) -> Tensor:
    """The sum [N] of each row's absolute values: 0 if there is nothing in it."""
    return torch.stack([row.abs().sum() for row in rows])


def kl_to_reference(turns: Sequence[Turn], sampled_from: LogProbs, reference: LogProbs) -> dict[TurnKey, Tensor]:
    """log pi_k - log pi_ref of each token: what it adds to an estimate of KL(pi_k || pi_ref)."""
    return {turn.key: sampled_from[turn.key] - reference[turn.key] for turn in turns}
