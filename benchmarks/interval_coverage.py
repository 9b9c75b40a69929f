"""Measure how often the intervals of `seeupo.core.statistics` contain the truth, in simulated panels of tasks.

The success probabilities of a panel's tasks come from Beta(mean * c, (1 - mean) * c), where the concentration c goes
from infinity (all tasks alike) to 0 (a task always succeeds or always fails); each task is then attempted several
times. The truth is the expectation over tasks and attempts. The results are percentages.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from seeupo.core.statistics import difference_interval, mean_interval, task_pass_rates

Values = npt.NDArray[np.float64]
Interval = Callable[[Values], tuple[Values, Values]]

TASKS = 100
K = 4
MEANS = [0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98]
PAIRS = [(0.02, 0.02), (0.02, 0.05), (0.05, 0.1), (0.1, 0.3), (0.5, 0.5), (0.5, 0.9), (0.95, 0.98), (0.02, 0.98)]
CONCENTRATIONS = [math.inf, 50, 10, 3, 1, 0.3, 0]
LOGIT_MEANS = [-4, -2, 0, 2, 4]
LOGIT_DEVIATIONS = [1, 2, 3]


def draw_tasks(concentration: float, mean: float, shape: tuple[int, int], rng: np.random.Generator) -> Values:
    """Return random success probabilities of tasks."""
    if concentration == math.inf:
        return np.full(shape, mean)
    if concentration == 0:
        return (rng.random(shape) < mean).astype(np.float64)
    return rng.beta(mean * concentration, (1 - mean) * concentration, shape)


def true_pass_rate(concentration: float, mean: float, k: int) -> float:
    """Return the expectation of 1 - (1 - p)^k over tasks."""
    if concentration == math.inf:
        return 1 - (1 - mean) ** k
    failing = 1.0 - mean
    for drawn in range(1, k):
        failing *= ((1 - mean) * concentration + drawn) / (concentration + drawn)
    return 1 - failing


def coverage(interval: Interval, values: Values, truth: float) -> float:
    """Return the share of panels whose interval contains the truth."""
    low, high = interval(values)
    return float(((low <= truth) & (truth <= high)).mean())


def avg_coverage(
    concentration: float,
    mean: float,
    *,
    attempts: int = K,
    panels: int,
    rng: np.random.Generator,
    interval: Interval = mean_interval,
) -> float:
    """Return the coverage of the average of 4 or more attempts."""
    successes = rng.binomial(attempts, draw_tasks(concentration, mean, (panels, TASKS), rng))
    return coverage(interval, successes / attempts, mean)


def unseen_coverage(deviation: float, mean: float, *, panels: int, rng: np.random.Generator) -> float:
    """Return the coverage of avg@4 for normal log-odds, a family not used to choose the method."""

    def success(normal: Values) -> Values:
        odds: Values = np.exp(mean + deviation * normal)
        return odds / (1 + odds)

    points, weights = np.polynomial.hermite_e.hermegauss(100)
    truth = float(success(points) @ weights / weights.sum())
    successes = rng.binomial(K, success(rng.standard_normal((panels, TASKS))))
    return coverage(mean_interval, successes / K, truth)


def pass_coverage(concentration: float, mean: float, *, attempts: int, panels: int, rng: np.random.Generator) -> float:
    """Return the coverage of pass@4 from 4 or more attempts."""
    successes = rng.binomial(attempts, draw_tasks(concentration, mean, (panels, TASKS), rng))
    rates = task_pass_rates(successes, np.full_like(successes, attempts), K)
    return coverage(mean_interval, rates, true_pass_rate(concentration, mean, K))


def paired_coverage(
    concentration: float, means: tuple[float, float], *, same_order: bool, panels: int, rng: np.random.Generator
) -> float:
    """Return the coverage of the difference of two avg@4; `same_order` makes the same tasks hard for both."""
    a, b = (draw_tasks(concentration, mean, (panels, TASKS), rng).ravel() for mean in means)
    if same_order:
        order = rng.permutation(a.size)
        a, b = np.sort(a)[order], np.sort(b)[order]
    differences = (rng.binomial(K, a) - rng.binomial(K, b)).reshape(panels, TASKS) / K
    return coverage(difference_interval, differences, means[0] - means[1])


def percentile_bootstrap(rng: np.random.Generator, resamples: int = 1000) -> Interval:
    """Return the percentile bootstrap, for comparison. A resample consists of counts of the 5 values."""
    support = np.arange(K + 1) / K

    def interval(values: Values) -> tuple[Values, Values]:
        shares = (values[..., None] == support).mean(axis=1)
        means = [rng.multinomial(TASKS, row, size=resamples) @ support / TASKS for row in shares]
        low, high = np.quantile(means, [0.025, 0.975], axis=1)
        return low, high

    return interval


def main() -> None:
    from side_by_side import table, write_results

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--panels", type=int, default=20_000, help="Number of simulated panels per cell.")
    panels = parser.parse_args().panels
    rng = np.random.default_rng(0)
    bootstrap = percentile_bootstrap(rng)
    results: dict[str, Any] = {"panels": panels, "tasks": TASKS, "parts": {}}

    def part(name: str, cell: Callable[[Any, Any], float], rows: list[Any], columns: list[Any]) -> None:
        coverage = {f"{row:g}": [round(100 * cell(row, column), 1) for column in columns] for row in rows}
        results["parts"][name] = {"columns": columns, "rows": coverage}
        print(f"\n{name}")
        table([["", *map(str, columns)], *([row, *map(str, cells)] for row, cells in coverage.items())])

    def of_beta(
        name: str, cell: Callable[..., float], columns: list[Any], panels: int = panels, **options: Any
    ) -> None:
        part(name, lambda c, x: cell(c, x, panels=panels, rng=rng, **options), CONCENTRATIONS, columns)

    of_beta("avg@4", avg_coverage, MEANS)
    of_beta("avg@4, percentile bootstrap", avg_coverage, MEANS, panels=panels // 10, interval=bootstrap)
    of_beta("avg@16", avg_coverage, MEANS, attempts=16)
    part(
        "avg@4, normal log-odds",
        lambda deviation, mean: unseen_coverage(deviation, mean, panels=panels, rng=rng),
        LOGIT_DEVIATIONS,
        LOGIT_MEANS,
    )
    of_beta("pass@4 from 4", pass_coverage, MEANS, attempts=4)
    of_beta("pass@4 from 8", pass_coverage, MEANS, attempts=8)
    of_beta("difference, same order", paired_coverage, PAIRS, same_order=True)
    of_beta("difference, own order", paired_coverage, PAIRS, same_order=False)
    write_results("interval_coverage", results)


if __name__ == "__main__":
    main()
