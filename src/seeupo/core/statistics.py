"""avg@k, pass@k and paired differences of scores, with confidence intervals over tasks: docs/guides/evaluation.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from seeupo.utils.option_checks import check_count, check_unit_interval

Values = npt.NDArray[np.float64]
Counts = npt.NDArray[np.integer[Any]]
Scores = Sequence[Sequence[float]]
"""Scores in [0, 1], [tasks][attempts]. Tasks may have different numbers of attempts."""
LEVEL = 0.95
"""Confidence level of all intervals."""
PRIOR_SQUARES = 0.125
"""Squared deviation added to that of the tasks and to its largest possible value before the two are compared.

A few successes contain little information about their spread over tasks; this makes the interval wider. Chosen by
coverage.
"""


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks and its 95% confidence interval: `low` <= `value` <= `high`."""

    value: float
    low: float
    high: float
    tasks: int


def avg_at_k(scores: Scores, k: int) -> Estimate:
    """Return the average score of an attempt: the mean over tasks of the mean of the task's attempts.

    Tasks have equal weight. If a task has more than k attempts, all are used: the expectation is that of k of them,
    with less noise. A task with fewer than k attempts is an error.
    """
    check_count("k", k, 1)
    averages = task_averages(scores)
    for task, attempts in enumerate(scores):
        _check_attempts(task, len(attempts), k, f"avg@{k}")
    return _estimate(averages, mean_interval(averages))


def pass_at_k(successes: Sequence[int] | Counts, totals: Sequence[int] | Counts, k: int) -> Estimate:
    """Return the probability that at least one of k attempts succeeds, as a mean over tasks.

    Args:
        successes: [tasks], as counted by `count_successes`.
        totals: [tasks], number of attempts of each task, at least k.
        k: Number of attempts.

    A task with c successes in n attempts has 1 - C(n - c, k) / C(n, k), which is unbiased for every n >= k.
    """
    rates = task_pass_rates(np.asarray(successes), np.asarray(totals), k)
    return _estimate(rates, mean_interval(rates))


def paired_difference(scores_a: Scores, scores_b: Scores, *, pass_k: int | None = None) -> Estimate:
    """Return the mean over tasks of a's average score minus b's.

    Both have the same tasks in the same order; the numbers of attempts may differ. With `pass_k` the tasks' pass@k are
    compared instead of their average scores.
    """
    if len(scores_a) != len(scores_b):
        raise ValueError(
            f"scores_b has {len(scores_b)} tasks: expected {len(scores_a)}, as in scores_a; pair them by task"
        )
    if pass_k is None:
        values_a, values_b = task_averages(scores_a), task_averages(scores_b)
    else:
        values_a, values_b = (task_pass_rates(*count_successes(scores), pass_k) for scores in (scores_a, scores_b))
    differences = values_a - values_b
    return _estimate(differences, difference_interval(differences))


def count_successes(scores: Scores) -> tuple[Counts, Counts]:
    """Return the numbers of successes and attempts of each task. A success is a score of exactly 1."""
    task_averages(scores)
    successes = [sum(score == 1 for score in attempts) for attempts in scores]
    return np.array(successes, dtype=np.int64), np.array([len(attempts) for attempts in scores], dtype=np.int64)


def task_averages(scores: Scores) -> Values:
    """Return the mean score of each task."""
    if len(scores) == 0:
        raise ValueError("scores = []: expected at least one task")
    for task, attempts in enumerate(scores):
        _check_attempts(task, len(attempts), 1, "a mean")
        for attempt, score in enumerate(attempts):
            check_unit_interval(f"score of task {task}, attempt {attempt}", score)
    return np.array([math.fsum(attempts) / len(attempts) for attempts in scores])


def task_pass_rates(successes: Counts, totals: Counts, k: int) -> Values:
    """Return pass@k of each task, 1 - C(n - c, k) / C(n, k), for counts [..., tasks]."""
    check_count("k", k, 1)
    if successes.size == 0:
        raise ValueError("successes = []: expected at least one task")
    short = np.argwhere(totals < k)
    if len(short):
        _check_attempts(short[0][-1], totals[tuple(short[0])], k, f"pass@{k}")
    failures, totals = (totals - successes).astype(np.float64), totals.astype(np.float64)
    # The quotient of binomials as a product of k quotients in [0, 1]: no overflow, and 0 and 1 are exact.
    all_fail = np.ones(totals.shape)
    for drawn in range(k):
        all_fail *= np.maximum(failures - drawn, 0) / (totals - drawn)
    return 1 - all_fail


def mean_interval(values: Values) -> tuple[Values, Values]:
    """Return a 95% interval for the mean of the population of tasks that `values` [..., tasks] in [0, 1] come from.

    It is Wilson's interval for the number of 0/1 tasks that would give the mean the same uncertainty as the values'
    spread does. It is inside [0, 1], contains the mean of the values, and is wider than 0 even if all values are equal.
    """
    _check_range(values, 0, 1)
    # Sorted, so that the order of tasks does not change the last digit.
    values, tasks = np.sort(values, axis=-1), values.shape[-1]
    mean = values.mean(axis=-1)
    if tasks > 1:
        # The spread as a fraction of the largest possible for this mean, which is that of 0/1 tasks.
        squares = values.var(axis=-1, ddof=1) * tasks
        largest = mean * (1 - mean) * tasks
        share = np.minimum((squares + PRIOR_SQUARES) / (largest + PRIOR_SQUARES), 1)
    else:
        share = np.ones_like(mean)
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    z += (z**3 + z) / (4 * tasks)  # Student's quantile to first order, because the spread is an estimate
    z_poisson = NormalDist().inv_cdf(LEVEL)
    effective_tasks = tasks / share
    low = _lower_end(mean, effective_tasks, z, z_poisson)
    high = 1 - _lower_end(1 - mean, effective_tasks, z, z_poisson)
    return np.minimum(low, mean), np.maximum(high, mean)


def difference_interval(differences: Values) -> tuple[Values, Values]:
    """Return a 95% interval for the mean of the population that `differences` [..., tasks] in [-1, 1] are drawn from.

    A difference is a gain or a loss. Each of the two means has its own `mean_interval`; the distances to the ends are
    combined as standard errors of correlated means (a task that gains does not lose). If all tasks tie, the interval
    is still wider than 0: ties do not prove that there is no difference.
    """
    _check_range(differences, -1, 1)
    differences = np.sort(differences, axis=-1)
    gains, losses = np.maximum(differences, 0), np.maximum(-differences, 0)
    gain, loss, mean = gains.mean(axis=-1), losses.mean(axis=-1), differences.mean(axis=-1)
    deviations = gains.std(axis=-1) * losses.std(axis=-1)
    correlation = np.where(deviations > 0, np.maximum(-gain * loss / np.where(deviations > 0, deviations, 1), -1), 0)
    gain_low, gain_high = mean_interval(gains)
    loss_low, loss_high = mean_interval(losses)

    def distance(of_gain: Values, of_loss: Values) -> Values:
        return np.sqrt(of_gain**2 + of_loss**2 - 2 * correlation * of_gain * of_loss)

    low = mean - distance(gain - gain_low, loss_high - loss)
    high = mean + distance(gain_high - gain, loss - loss_low)
    return np.clip(low, -1, 1), np.clip(high, -1, 1)


def _lower_end(mean: Values, tasks: Values, z: float, z_poisson: float) -> Values:
    """Return the lower end of Wilson's interval for a fraction `mean` of 0/1 tasks; `tasks` need not be an integer."""
    shift = z * z / tasks
    half = np.sqrt(shift * mean * (1 - mean) + shift * shift / 4)
    wilson = np.maximum((mean + shift / 2 - half) / (1 + shift), 0)
    # For one to three rare successes Wilson's end is too high. We use the one-sided limit of a Poisson count there (by
    # the cube root that makes it nearly normal), and fade it out towards the fourth success and where most succeed.
    count = np.maximum(mean * tasks, 1e-9)
    root = 1 - 1 / (9 * count) - z_poisson / (3 * np.sqrt(count))
    poisson = mean * np.maximum(root, 0) ** 3
    weight = np.clip(4 - count, 0, 1) * (1 - mean)
    lower: Values = wilson - weight * np.maximum(wilson - poisson, 0)
    return lower


def _estimate(values: Values, interval: tuple[Values, Values]) -> Estimate:
    low, high = interval
    return Estimate(float(np.sort(values).mean()), float(low), float(high), len(values))


def _check_attempts(task: int, attempts: int, needed: int, purpose: str) -> None:
    if attempts < needed:
        raise ValueError(f"task {task} has {attempts} attempt(s): {purpose} needs at least {needed}; use a smaller k")


def _check_range(values: Values, low: float, high: float) -> None:
    if values.size == 0:
        raise ValueError("values = []: expected at least one task")
    if not ((values >= low) & (values <= high)).all():
        raise ValueError(f"values: expected numbers in [{low}, {high}]")


def format_estimate(estimate: Mapping[str, float | None] | None, *, signed: bool = False, digits: int = 3) -> str:
    """Return an estimate {"value", "low", "high"} as text: the value, and its interval if it has one."""
    if estimate is None:
        return "-"
    style = f"{'+' if signed else ''}.{digits}f"
    text = f"{estimate['value']:{style}}"
    if estimate["low"] is None or estimate["high"] is None:
        return text
    return f"{text} [{estimate['low']:{style}}, {estimate['high']:{style}}]"
