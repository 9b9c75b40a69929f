"""Mean scores of an iteration with intervals over its groups, which the metrics do not contain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seeupo.core.statistics import mean_interval
from seeupo.runs.trajectory_rows import TrajectoryRow


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


def score_intervals(groups: Sequence[Sequence[TrajectoryRow]], *, bounded: bool = True) -> IterationScores:
    """Return success and reward with intervals over groups; failed attempts have no score and are left out.

    Args:
        bounded: Whether rewards are scores; others have no known bounds, and therefore no interval.
    """
    scores = [[row.score for row in group if row.score is not None] for group in groups]
    rewards = [[row.reward for row in group if row.reward is not None] for group in groups]
    return IterationScores(
        success=_interval([[float(score == 1.0) for score in group] for group in scores if group]),
        reward=_interval([group for group in rewards if group], bounded=bounded),
    )


def _interval(groups: Sequence[Sequence[float]], *, bounded: bool = True) -> MeanInterval | None:
    if not groups:
        return None
    try:
        value = math.fsum(map(math.fsum, groups)) / sum(map(len, groups))
    except OverflowError:  # rewards of a custom environment, too large to add up
        return None
    means = np.array([math.fsum(group) / len(group) for group in groups])
    # Scores of a custom environment may have other bounds.
    if not bounded or not ((means >= 0) & (means <= 1)).all():
        return MeanInterval(value, None, None)
    low, high = map(float, mean_interval(means))
    # Groups of different sizes have another mean than their attempts.
    return MeanInterval(value, min(low, value), max(high, value))
