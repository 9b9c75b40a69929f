"""Mean scores of an iteration with intervals over its groups, which the metrics do not contain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seeupo.core.statistics import mean_interval
from seeupo.runs.trajectory_rows import TrajectoryRow

REWARD_RANGES = {"none": (0.0, 1.0), "paper_code": (-1.0, 1.5)}
"""Lowest and highest reward, by `collect.shape`."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean over attempts with its 95% interval over groups; the ends are None if rewards have no known bounds."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class IterationScores:
    """Success and reward of one iteration; None if no attempt has a score."""

    success: MeanInterval | None
    reward: MeanInterval | None


def score_intervals(
    groups: Sequence[Sequence[TrajectoryRow]], shape: str, *, step_rewards: bool = False
) -> IterationScores:
    """Return success and reward with intervals over groups; failed attempts have no score and are left out.

    Rewards with `step_rewards` have no known bounds, and therefore no interval.
    """
    low, high = (math.inf, math.inf) if step_rewards else REWARD_RANGES.get(shape, REWARD_RANGES["none"])
    scores = [[row.score for row in group if row.score is not None] for group in groups]
    rewards = [[row.reward for row in group if row.reward is not None] for group in groups]
    return IterationScores(
        success=_interval([[float(score == 1.0) for score in group] for group in scores if group], 0.0, 1.0),
        reward=_interval([group for group in rewards if group], low, high),
    )


def _interval(groups: Sequence[Sequence[float]], low: float, high: float) -> MeanInterval | None:
    if not groups:
        return None
    try:
        value = math.fsum(map(math.fsum, groups)) / sum(map(len, groups))
    except OverflowError:  # rewards of a custom environment, too large to add up
        return None
    if math.isinf(low):
        return MeanInterval(value, None, None)
    means = np.array([math.fsum(group) / len(group) for group in groups])
    shares = (means - low) / (high - low)
    if not ((shares >= 0) & (shares <= 1)).all():  # rewards of a custom environment, without known bounds
        return MeanInterval(value, None, None)
    ends = [float(end) * (high - low) + low for end in mean_interval(shares)]
    # Groups of different sizes have another mean than their attempts.
    return MeanInterval(value, min(ends[0], value), max(ends[1], value))
