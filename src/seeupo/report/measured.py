"""Scores of an iteration with intervals over its groups, which metrics do not hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seeupo.core.statistics import mean_interval

SHAPES = {"none": (0.0, 1.0, 1.0), "paper_code": (-1.0, 1.5, 1.5)}
"""Per shape of rewards: the lowest, the highest, and the one of a success."""


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


def measure(groups: Sequence[Sequence[float | None]], shape: str) -> Measured:
    """Success and reward from the rewards of each group's attempts; None is a failed one, which is not scored."""
    low, high, success = SHAPES.get(shape, SHAPES["none"])
    scored = [[reward for reward in group if reward is not None] for group in groups]
    scored = [group for group in scored if group]
    return Measured(
        success=_spread([[float(reward == success) for reward in group] for group in scored], 0.0, 1.0),
        reward=_spread(scored, low, high),
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
