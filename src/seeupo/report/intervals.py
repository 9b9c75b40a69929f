"""Scores of an iteration with intervals over its groups, which metrics do not hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seeupo.core.statistics import mean_interval
from seeupo.runs.trajectory_rows import Row

REWARD_RANGES = {"none": (0.0, 1.0), "paper_code": (-1.0, 1.5)}
"""Per reward shape: the lowest and the highest reward."""


@dataclass(frozen=True)
class Spread:
    """A mean over attempts, and its interval over groups; None where there is none."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Measured:
    """Of one iteration; None if no attempt has a score."""

    success: Spread | None
    reward: Spread | None


def measure(groups: Sequence[Sequence[Row]], shape: str) -> Measured:
    """Return success and reward with intervals over groups; failed attempts have no score and are left out."""
    low, high = REWARD_RANGES.get(shape, REWARD_RANGES["none"])
    scores = [[row.score for row in group if row.score is not None] for group in groups]
    rewards = [[row.reward for row in group if row.reward is not None] for group in groups]
    return Measured(
        # Shaped rewards were written as scores before format version 2: there, a success is 1.5.
        success=_spread([[float(score >= 1.0) for score in group] for group in scores if group], 0.0, 1.0),
        reward=_spread([group for group in rewards if group], low, high),
    )


def _spread(groups: Sequence[Sequence[float]], low: float, high: float) -> Spread | None:
    if not groups:
        return None
    try:
        value = math.fsum(map(math.fsum, groups)) / sum(map(len, groups))
    except OverflowError:  # rewards of somebody's own, beyond what can be added up
        return None
    means = np.array([math.fsum(group) / len(group) for group in groups])
    shares = (means - low) / (high - low)
    if not ((shares >= 0) & (shares <= 1)).all():  # rewards of somebody's own, whose bounds nobody knows
        return Spread(value, None, None)
    ends = [float(end) * (high - low) + low for end in mean_interval(shares)]
    # Groups of different sizes have another mean than their attempts.
    return Spread(value, min(ends[0], value), max(ends[1], value))
