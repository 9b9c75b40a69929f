"""avg@k, pass@k and paired differences of scores, with intervals over tasks. `docs/evaluation.md` says how and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from seeupo.core.checks import check_count, check_number

Values = npt.NDArray[np.float64]
Counts = npt.NDArray[np.integer[Any]]
Scores = Sequence[Sequence[float]]
"""[tasks][samples]: scores in [0, 1]. Tasks may have different numbers of samples."""

PRIOR_SQUARES = 0.125
"""Squared deviation that is added to the tasks' own and to its largest possible value before the two are compared.

Few successes say little about how they spread over tasks; this pulls towards the wider interval. Chosen by coverage.
"""


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks and its interval: `low` <= `value` <= `high`."""

    value: float
    low: float
    high: float
    level: float
    tasks: int


def avg_at_k(scores: Scores, k: int, *, level: float = 0.95) -> Estimate:
    """The score that one sample gets on average: the mean over tasks of the mean of the task's samples.

    Tasks count equally. A task with more than k samples enters with all of them: the expectation is that of k drawn
    from them, with less noise. A task with fewer than k samples is an error.
    """
    check_count("k", k, 1)
    averages = task_averages(scores)
    for task, samples in enumerate(scores):
        _check_samples(task, len(samples), k, f"avg@{k}")
    return _estimate(averages, mean_interval(averages, level=level), level)


def pass_at_k(
    successes: Sequence[int] | Counts, totals: Sequence[int] | Counts, k: int, *, level: float = 0.95
) -> Estimate:
    """The probability that at least one of k samples succeeds, as a mean over tasks.

    Args:
        successes: [tasks], as counted by `count_successes`.
        totals: [tasks], the samples of each task, at least k.
        k: how many attempts a task gets.
        level: of the interval.

    A task with c successes in n samples counts 1 - C(n - c, k) / C(n, k), which is unbiased for every n >= k.
    """
    rates = task_pass_rates(np.asarray(successes), np.asarray(totals), k)
    if rates.ndim != 1:
        raise ValueError(f"successes has shape {rates.shape}; it must have one count per task")
    return _estimate(rates, mean_interval(rates, level=level), level)


def paired_difference(
    scores_a: Scores, scores_b: Scores, *, pass_k: int | None = None, level: float = 0.95
) -> Estimate:
    """How much better a is than b on the same tasks: the mean over tasks of a's average score minus b's.

    Both list the same tasks in the same order; the numbers of samples may differ. With `pass_k` the tasks' pass@k are
    compared instead of their average scores.
    """
    if len(scores_a) != len(scores_b):
        raise ValueError(f"a has {len(scores_a)} tasks, b has {len(scores_b)}; pair them by task first")
    if pass_k is None:
        values_a, values_b = task_averages(scores_a), task_averages(scores_b)
    else:
        values_a, values_b = (task_pass_rates(*count_successes(scores), pass_k) for scores in (scores_a, scores_b))
    differences = values_a - values_b
    return _estimate(differences, difference_interval(differences, level=level), level)


def count_successes(scores: Scores) -> tuple[Counts, Counts]:
    """Successes and samples of each task. A success is a score of exactly 1; any part of it is none."""
    task_averages(scores)
    successes = [sum(score == 1 for score in samples) for samples in scores]
    return np.array(successes, dtype=np.int64), np.array([len(samples) for samples in scores], dtype=np.int64)


def task_averages(scores: Scores) -> Values:
    """The mean score of each task."""
    if len(scores) == 0:
        raise ValueError("scores is empty; at least one task is needed")
    for task, samples in enumerate(scores):
        _check_samples(task, len(samples), 1, "a mean")
        for sample, score in enumerate(samples):
            check_number(f"the score of task {task}, sample {sample}", score)
            if not 0 <= score <= 1:
                raise ValueError(f"the score of task {task}, sample {sample} is {score}; it must be in [0, 1]")
    return np.array([math.fsum(samples) / len(samples) for samples in scores])


def task_pass_rates(successes: Counts, totals: Counts, k: int) -> Values:
    """pass@k of each task, 1 - C(n - c, k) / C(n, k), for counts [..., tasks]."""
    check_count("k", k, 1)
    if successes.size == 0:
        raise ValueError("successes is empty; at least one task is needed")
    if successes.shape != totals.shape:
        raise ValueError(f"successes has shape {successes.shape}, totals has {totals.shape}; they must agree")
    for name, counts in (("successes", successes), ("totals", totals)):
        if counts.dtype.kind not in "iu":
            raise ValueError(f"{name} has dtype {counts.dtype}; it must hold whole numbers")
    short = np.argwhere(totals < k)
    if len(short):
        _check_samples(short[0][-1], totals[tuple(short[0])], k, f"pass@{k}")
    wrong = np.argwhere((successes < 0) | (successes > totals))
    if len(wrong):
        where = tuple(wrong[0])
        raise ValueError(f"task {where[-1]} has {successes[where]} successes in {totals[where]} samples")
    failures, totals = (totals - successes).astype(np.float64), totals.astype(np.float64)
    # The quotient of binomials as a product of k quotients in [0, 1]: nothing overflows, 0 and 1 come out exactly.
    all_fail = np.ones(totals.shape)
    for drawn in range(k):
        all_fail *= np.maximum(failures - drawn, 0) / (totals - drawn)
    return 1 - all_fail


def mean_interval(values: Values, *, level: float = 0.95) -> tuple[Values, Values]:
    """An interval for the mean of the population of tasks that `values` [..., tasks], each in [0, 1], were drawn from.

    Wilson's interval for as many yes-or-no tasks as would make the mean as uncertain as the values' own spread does.
    It lies in [0, 1], contains the mean of the values, and has a width even if all values are equal.
    """
    _check_level(level)
    _check_range(values, 0, 1)
    # Sorted, so that the order of tasks cannot change a last digit.
    values, tasks = np.sort(values, axis=-1), values.shape[-1]
    mean = values.mean(axis=-1)
    if tasks > 1:
        # The spread as a share of the largest that this mean allows, which is that of yes-or-no tasks.
        squares = values.var(axis=-1, ddof=1) * tasks
        largest = mean * (1 - mean) * tasks
        share = np.minimum((squares + PRIOR_SQUARES) / (largest + PRIOR_SQUARES), 1)
    else:
        share = np.ones_like(mean)
    z = NormalDist().inv_cdf((1 + level) / 2)
    z += (z**3 + z) / (4 * tasks)  # Student's quantile to first order: the spread is an estimate
    z_poisson = NormalDist().inv_cdf(level)
    effective_tasks = tasks / share
    low = _lower_end(mean, effective_tasks, z, z_poisson)
    high = 1 - _lower_end(1 - mean, effective_tasks, z, z_poisson)
    return np.minimum(low, mean), np.maximum(high, mean)


def difference_interval(differences: Values, *, level: float = 0.95) -> tuple[Values, Values]:
    """An interval for the mean of the tasks that `differences` [..., tasks], each in [-1, 1], are a sample of.

    A difference is a gain or a loss. Each of the two means has its own `mean_interval`; the distances to the ends
    are added as standard errors of correlated means are (a task that gains does not lose). A panel of ties has an
    interval with a width too: it does not prove that there is no difference.
    """
    _check_range(differences, -1, 1)
    differences = np.sort(differences, axis=-1)
    gains, losses = np.maximum(differences, 0), np.maximum(-differences, 0)
    gain, loss, mean = gains.mean(axis=-1), losses.mean(axis=-1), differences.mean(axis=-1)
    deviations = gains.std(axis=-1) * losses.std(axis=-1)
    correlation = np.where(deviations > 0, np.maximum(-gain * loss / np.where(deviations > 0, deviations, 1), -1), 0)
    gain_low, gain_high = mean_interval(gains, level=level)
    loss_low, loss_high = mean_interval(losses, level=level)

    def distance(of_gain: Values, of_loss: Values) -> Values:
        return np.sqrt(of_gain**2 + of_loss**2 - 2 * correlation * of_gain * of_loss)

    low = mean - distance(gain - gain_low, loss_high - loss)
    high = mean + distance(gain_high - gain, loss - loss_low)
    return np.clip(low, -1, 1), np.clip(high, -1, 1)


def _lower_end(mean: Values, tasks: Values, z: float, z_poisson: float) -> Values:
    """The lower end of Wilson's interval for a share `mean` of yes-or-no tasks, a number that need not be whole."""
    shift = z * z / tasks
    half = np.sqrt(shift * mean * (1 - mean) + shift * shift / 4)
    wilson = np.maximum((mean + shift / 2 - half) / (1 + shift), 0)
    # For one to three rare successes Wilson's end is too high. There we take the one-sided limit of a Poisson count (by
    # the cube root that makes it nearly normal), and fade it out towards the fourth success and where most succeed.
    count = np.maximum(mean * tasks, 1e-9)
    root = 1 - 1 / (9 * count) - z_poisson / (3 * np.sqrt(count))
    poisson = mean * np.maximum(root, 0) ** 3
    weight = np.clip(4 - count, 0, 1) * (1 - mean)
    lower: Values = wilson - weight * np.maximum(wilson - poisson, 0)
    return lower


def _estimate(values: Values, interval: tuple[Values, Values], level: float) -> Estimate:
    low, high = interval
    return Estimate(float(np.sort(values).mean()), float(low), float(high), level, len(values))


def _check_samples(task: int, samples: int, needed: int, purpose: str) -> None:
    if samples < needed:
        raise ValueError(
            f"task {task} has {samples} sample(s); {purpose} needs at least {needed}: draw more, or ask for less"
        )


def _check_level(level: float) -> None:
    check_number("level", level)
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1, for instance 0.95")


def _check_range(values: Values, low: float, high: float) -> None:
    if values.size == 0:
        raise ValueError("there are no tasks; at least one is needed")
    if not ((values >= low) & (values <= high)).all():
        raise ValueError(f"a task's value is outside [{low}, {high}], or not a number")


def format_estimate(estimate: Mapping[str, float] | None, *, signed: bool = False, digits: int = 3) -> str:
    """Return an estimate {"value", "low", "high"} as text: the value and its interval."""
    if estimate is None:
        return "-"
    value, low, high = (f"{estimate[name]:{'+' if signed else ''}.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
