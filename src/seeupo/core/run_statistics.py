"""Statistics of training runs that were repeated with several seeds, with confidence intervals over seeds.

docs/guides/compare.md has the coverage of these intervals beside that of bootstraps, which are too narrow for so few
runs.
Values have shape [..., seeds], so that many simulated studies can be computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

LEVEL = 0.95
ROUNDING = 1e-12
"""Differences of scores below this are those of floating point."""
TRIMMED = 0.25
"""Share of runs that the interquartile mean leaves out at either end."""


class Interval(NamedTuple):
    """An estimate and the ends of its 95% confidence interval; they are infinite if there are too few runs."""

    value: Values
    low: Values
    high: Values


def mean_of_runs(values: Values) -> Interval:
    """Return the mean over seeds, with Student's interval."""
    return _around(values.mean(axis=-1), _standard_error(values), values.shape[-1] - 1)


def interquartile_mean(values: Values) -> Interval:
    """Return the mean of the middle half of the runs, with the interval of Tukey and McLaughlin.

    It is Student's interval with the spread of winsorized values: those left out count as the nearest ones kept. Below
    four runs none is left out.
    """
    ordered, runs = np.sort(values, axis=-1), values.shape[-1]
    cut = int(TRIMMED * runs)
    kept = runs - 2 * cut
    middle = ordered[..., cut : runs - cut]
    winsorized = np.clip(ordered, middle[..., :1], middle[..., -1:])
    return _around(middle.mean(axis=-1), _standard_error(winsorized) * runs / kept, kept - 1)


def paired_difference(values: Values, others: Values) -> Interval:
    """Return the mean over seeds of `values` minus `others`, with Student's interval."""
    return mean_of_runs(values - others)


def p_value(values: Values, others: Values) -> Values:
    """Return the two-sided p-value of Student's paired test; 1 for equal values or fewer than two seeds.

    Differences without spread, as of scores with few digits, have that of the sign test, 2^(1 - seeds).
    """
    difference = values - others
    mean, error, runs = difference.mean(axis=-1), _standard_error(difference), difference.shape[-1]
    if runs < 2:
        return np.ones_like(mean)
    spread = error > ROUNDING
    statistic = np.abs(mean) / np.where(spread, error, 1)
    tail = np.vectorize(lambda t: 2 * (1 - student_cdf(t, runs - 1)), otypes=[np.float64])(statistic)
    return np.where(spread, tail, np.where(np.abs(mean) <= ROUNDING, 1.0, 2.0 ** (1 - runs)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of comparisons by the method of Holm."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def probability_of_improvement(values: Values, others: Values) -> Interval:
    """Return the probability that a run of `values` is above one of `others`, over all pairs; ties count as half.

    The interval is Student's on the scale of log-odds. A seed contributes its run's rank in both samples, so runs of
    the same seed may be correlated. The lower end counts half a loss more and the upper end half a win more, so that
    the interval is never empty.
    """
    runs = values.shape[-1]
    wins = np.heaviside(values[..., :, None] - others[..., None, :], 0.5)
    share = wins.mean(axis=(-2, -1))
    error = _standard_error(wins.mean(axis=-1) + wins.mean(axis=-2))
    quantile = student_quantile((1 + LEVEL) / 2, runs - 1)

    def lower_end(share: Values) -> Values:
        cautious = share * runs / (runs + 0.5)
        spread = np.maximum(cautious * (1 - cautious), 1e-12)
        odds = np.log(np.maximum(cautious, 1e-12) / (1 - cautious))
        # The spread of the ranks vanishes if one side always wins; that of a binomial count bounds it from below.
        deviation = np.maximum(error, spread / math.sqrt(runs)) / spread
        return np.where(cautious > 0, 1 / (1 + np.exp(np.minimum(quantile * deviation - odds, 700))), 0.0)

    return Interval(share, np.minimum(lower_end(share), share), np.maximum(1 - lower_end(1 - share), share))


def student_cdf(t: float, degrees: int) -> float:
    """Return the probability that Student's t with integer degrees of freedom is at most `t`."""
    if math.isinf(t):
        return float(t > 0)
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    # The finite series for integer degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4).
    odd = degrees % 2 == 1
    total = term = cosine if odd else 1.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if degrees == 1:
        total = 0.0
    inside = (angle + sine * total) * 2 / math.pi if odd else sine * total
    return (1 + inside) / 2


def student_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t above the median, by bisection; infinite without degrees of freedom."""
    if degrees < 1:
        return math.inf
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, degrees) < probability else (low, middle)
    return high


def _standard_error(values: Values) -> Values:
    runs = values.shape[-1]
    if runs < 2:
        return np.zeros(values.shape[:-1])
    error: Values = values.std(axis=-1, ddof=1) / math.sqrt(runs)
    return error


def _around(value: Values, error: Values, degrees: int) -> Interval:
    if degrees < 1:
        return Interval(value, np.full_like(value, -np.inf), np.full_like(value, np.inf))
    half = student_quantile((1 + LEVEL) / 2, degrees) * error
    return Interval(value, value - half, value + half)
