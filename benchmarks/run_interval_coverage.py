"""Measure the coverage of the intervals over seeds: how often a 95% interval contains the true value.

Studies with 5, 10, 20 and 30 seeds are simulated from known distributions of runs: normal, skewed, and with 15% or 35%
collapsed runs. Two arms differ by the same amount on all seeds, or by much on a few of them. Beside the intervals of
`seeupo.core.run_statistics` it measures bootstraps, and how often arms that do not differ on average are called
different. Run: python benchmarks/run_interval_coverage.py
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from seeupo.core.run_statistics import (
    Interval,
    Values,
    interquartile_mean,
    mean_of_runs,
    p_value,
    paired_difference,
    probability_of_improvement,
)

SEEDS = (5, 10, 20, 30)


def collapsed(rng: np.random.Generator, shape: tuple[int, ...], share: float) -> Values:
    """Return runs of which a share ends far below the others."""
    return np.where(rng.random(shape) < share, 0.3, 0.7) + 0.04 * rng.standard_normal(shape)


RUNS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Values]] = {
    "normal": lambda rng, shape: 0.6 + 0.05 * rng.standard_normal(shape),
    "skewed": lambda rng, shape: 0.9 - 0.05 * rng.gamma(2, 1, shape),
    "15% collapsed": lambda rng, shape: collapsed(rng, shape, 0.15),
    "35% collapsed": lambda rng, shape: collapsed(rng, shape, 0.35),
}
SHIFTS = (0.0, 1.0, 2.0)
"""Differences between two arms, in standard deviations of a run."""
SPARSE = (0.1, 0.2, 0.4)
"""Shares of seeds on which two arms differ, by ten standard deviations of the others."""
RESAMPLES = 500

Statistic = Callable[[Values], Values]


def middle_mean(values: Values) -> Values:
    """Return the interquartile mean of sorted or unsorted values [..., runs]."""
    return interquartile_mean(values).value


def percentile_bootstrap(values: Values, statistic: Statistic, rng: np.random.Generator) -> Interval:
    resampled = rng.integers(0, values.shape[-1], (RESAMPLES, values.shape[-1]))
    low, high = np.quantile([statistic(values[..., rows]) for rows in resampled], [0.025, 0.975], axis=0)
    return Interval(statistic(values), low, high)


def bca_bootstrap(values: Values, statistic: Statistic, rng: np.random.Generator) -> Interval:
    """Return the bias-corrected and accelerated bootstrap."""
    runs, normal = values.shape[-1], NormalDist()
    resampled = rng.integers(0, runs, (RESAMPLES, runs))
    estimates = np.sort([statistic(values[..., rows]) for rows in resampled], axis=0)
    value = statistic(values)
    below = np.clip((estimates < value).mean(axis=0), 1 / RESAMPLES, 1 - 1 / RESAMPLES)
    bias = np.vectorize(normal.inv_cdf)(below)
    left_out = np.stack([statistic(np.delete(values, n, axis=-1)) for n in range(runs)], axis=-1)
    away = left_out.mean(axis=-1, keepdims=True) - left_out
    acceleration = (away**3).sum(axis=-1) / np.maximum(6 * ((away**2).sum(axis=-1)) ** 1.5, 1e-300)
    ends = []
    for probability in (0.025, 0.975):
        shifted = bias + normal.inv_cdf(probability)
        level = np.vectorize(normal.cdf)(bias + shifted / (1 - acceleration * shifted))
        rows = np.clip((level * RESAMPLES).astype(int), 0, RESAMPLES - 1)
        ends.append(np.take_along_axis(estimates, rows[None], axis=0)[0])
    return Interval(value, *ends)


def covered(interval: Interval, truth: float) -> float:
    return round(100 * float(np.mean((interval.low <= truth) & (truth <= interval.high))), 1)


def main() -> None:
    from side_by_side import table, write_results

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=4000, help="Number of simulated studies per cell.")
    studies = parser.parse_args().studies
    rng = np.random.default_rng(0)
    results: dict[str, Any] = {"studies": studies, "seeds": list(SEEDS), "parts": {}}

    def part(name: str, rows: dict[str, list[float]]) -> None:
        results["parts"][name] = rows
        print(f"\n{name}")
        table([["", *map(str, SEEDS)], *([row, *map(str, cells)] for row, cells in rows.items())])

    for name, draw in RUNS.items():
        population = np.sort(draw(rng, (2_000_000,)))
        mean, middle = population.mean(), population[500_000:1_500_000].mean()
        cells: dict[str, list[float]] = {}
        for seeds in SEEDS:
            runs = draw(rng, (studies, seeds))
            few = runs[: studies // 4]
            for label, interval, truth in (
                ("interquartile mean, winsorized t", interquartile_mean(runs), middle),
                ("interquartile mean, percentile bootstrap", percentile_bootstrap(few, middle_mean, rng), middle),
                ("interquartile mean, BCa bootstrap", bca_bootstrap(few, middle_mean, rng), middle),
                ("mean, Student t", mean_of_runs(runs), mean),
                ("mean, percentile bootstrap", percentile_bootstrap(few, lambda v: v.mean(axis=-1), rng), mean),
            ):
                cells.setdefault(label, []).append(covered(interval, truth))
        part(f"runs: {name}", cells)

    pairs: dict[str, list[float]] = {}
    for seeds in SEEDS:
        for shift in SHIFTS:
            # Half of the variance of a run comes from its seed, which both arms share.
            shared, noise, other_noise = (rng.standard_normal((studies, seeds)) for _ in range(3))
            values, others = (shared + noise) / math.sqrt(2) + shift, (shared + other_noise) / math.sqrt(2)
            few = (values - others)[: studies // 4]
            rows = {
                f"paired difference of {shift:g} sd, Student t": covered(paired_difference(values, others), shift),
                f"paired difference of {shift:g} sd, percentile bootstrap": covered(
                    percentile_bootstrap(few, lambda v: v.mean(axis=-1), rng), shift
                ),
                f"probability of improvement, {shift:g} sd": covered(
                    probability_of_improvement(values, others), NormalDist().cdf(shift / math.sqrt(2))
                ),
            }
            if shift == 0:
                rows["identical arms called different"] = round(100 * float((p_value(values, others) < 0.05).mean()), 1)
            for label, cell in rows.items():
                pairs.setdefault(label, []).append(cell)
        for share in SPARSE:
            differs, noise = rng.random((studies, seeds)) < share, rng.standard_normal((studies, seeds))
            signs = rng.choice([-1, 1], (studies, seeds))
            rows = {
                f"difference on {share:.0%} of the seeds, Student t": covered(
                    mean_of_runs(10.0 * differs + noise), 10 * share
                ),
                f"differences on {share:.0%} of the seeds, either way, called significant": round(
                    100 * float((p_value(10.0 * differs * signs + noise, np.zeros_like(noise)) < 0.05).mean()), 1
                ),
            }
            for label, cell in rows.items():
                pairs.setdefault(label, []).append(cell)
    part("two arms", pairs)
    write_results("run_interval_coverage", results)


if __name__ == "__main__":
    main()
