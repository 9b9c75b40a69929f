"""Statistics of repeated runs: values by hand, published tables, and the coverage of the intervals."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from seeupo.core.run_statistics import (
    holm,
    interquartile_mean,
    mean_of_runs,
    p_value,
    paired_difference,
    probability_of_improvement,
    student_cdf,
    student_quantile,
)

ROOT = Path(__file__).parents[2]
STUDIES = 2000
MARGIN = 3 * math.sqrt(0.95 * 0.05 / STUDIES)
"""Three standard errors of a simulated coverage."""


@pytest.mark.parametrize(
    ("degrees", "quantile"),  # of 0.975, from the usual table
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (19, 2.093), (100, 1.984)],
)
def test_students_quantiles_are_those_of_the_table(degrees, quantile):
    assert student_quantile(0.975, degrees) == pytest.approx(quantile, abs=5e-4)
    assert student_cdf(-quantile, degrees) == pytest.approx(0.025, abs=5e-5)


def test_interquartile_mean_by_hand():
    values = np.array([9.0, 1.0, 2.0, 3.0, 7.0, 4.0, 5.0, 6.0])  # two are left out at either end
    estimate = interquartile_mean(values)
    assert estimate.value == pytest.approx((3 + 4 + 5 + 6) / 4)
    winsorized = np.array([3, 3, 3, 4, 5, 6, 6, 6])
    half = 3.182446 * winsorized.std(ddof=1) / math.sqrt(8) * 8 / 4
    assert estimate.high - estimate.value == pytest.approx(half, rel=1e-5)
    assert interquartile_mean(values[:3]) == pytest.approx(mean_of_runs(values[:3]))


def test_one_run_has_no_finite_interval():
    one = np.array([0.5])
    for estimate in (mean_of_runs(one), interquartile_mean(one), paired_difference(one, one)):
        assert (estimate.low, estimate.high) == (-np.inf, np.inf)
    assert p_value(one, one + 1) == 1
    estimate = probability_of_improvement(one, one)
    assert (estimate.low, estimate.high) == pytest.approx((0, 1))


def test_paired_difference_has_the_sign_of_the_better_arm():
    rng = np.random.default_rng(0)
    seeds = rng.standard_normal(8)  # runs vary far more between seeds than between arms
    better, worse = seeds + 0.2 + 0.05 * rng.standard_normal(8), seeds
    estimate = paired_difference(better, worse)
    assert 0 < estimate.low < estimate.value < estimate.high
    opposite = paired_difference(worse, better)
    assert (opposite.low, opposite.high) == pytest.approx((-estimate.high, -estimate.low))
    assert p_value(better, worse) == p_value(worse, better) < 0.001


def test_probability_of_improvement_by_hand():
    estimate = probability_of_improvement(np.array([1.0, 2.0, 4.0]), np.array([0.0, 2.0, 3.0]))
    assert estimate.value == pytest.approx((1 + 1.5 + 3) / 9)
    certain = probability_of_improvement(np.arange(10.0) + 20, np.arange(10.0))
    assert (certain.value, certain.high) == (1, 1)
    assert 0.6 < certain.low < 0.95
    opposite = probability_of_improvement(np.arange(10.0), np.arange(10.0) + 20)
    assert (opposite.low, opposite.high) == pytest.approx((0, 1 - certain.low))


def test_p_values_are_adjusted_in_order():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("seeds", [5, 10, 20])
def test_intervals_of_known_differences_cover_in_95_percent(seeds):
    rng = np.random.default_rng(seeds)
    shared, own, other = (rng.standard_normal((STUDIES, seeds)) for _ in range(3))
    values, others = shared + own + 0.7, shared + other
    estimate = paired_difference(values, others)
    assert np.mean((estimate.low <= 0.7) & (estimate.high >= 0.7)) == pytest.approx(0.95, abs=MARGIN)
    middle = interquartile_mean(values)
    assert np.mean((middle.low <= 0.7) & (middle.high >= 0.7)) > 0.92 - MARGIN
    chance = probability_of_improvement(values, others)
    truth = 0.5 * (1 + math.erf(0.7 / 2 / math.sqrt(2)))
    assert np.mean((chance.low <= truth) & (truth <= chance.high)) > 0.95 - MARGIN


@pytest.mark.parametrize("seeds", [5, 10, 20])
def test_identical_arms_do_not_differ_in_95_percent(seeds):
    rng = np.random.default_rng(seeds)
    shared, own, other = (rng.beta(8, 3, (STUDIES, seeds)) for _ in range(3))
    assert np.mean(p_value(shared + own, shared + other) > 0.05) == pytest.approx(0.95, abs=MARGIN)


def measured_coverage():
    return json.loads((ROOT / "benchmarks/results/run_interval_coverage.json").read_text())["parts"]


def test_chosen_intervals_cover_better_than_bootstraps_where_runs_are_few():
    parts = measured_coverage()
    for name in ("normal", "skewed", "15% collapsed"):
        rows = parts[f"runs: {name}"]
        chosen = rows["interquartile mean, winsorized t"]
        assert min(chosen) > 91
        assert chosen[0] > rows["interquartile mean, percentile bootstrap"][0]
    for shift in (0, 1, 2):
        five, ten, *_ = parts["two arms"][f"paired difference of {shift} sd, percentile bootstrap"]
        assert max(five, ten) < 92
        assert min(parts["two arms"][f"paired difference of {shift} sd, Student t"]) > 93.5


def test_means_cover_where_runs_end_in_two_groups_and_interquartile_means_do_not():
    rows = measured_coverage()["runs: 35% collapsed"]
    assert min(rows["mean, Student t"][1:]) > 92
    assert max(rows["interquartile mean, winsorized t"]) < 90


def test_differences_on_few_seeds_are_not_called_significant_too_often():
    rows = measured_coverage()["two arms"]
    significant = [cells for name, cells in rows.items() if name.endswith("either way, called significant")]
    assert len(significant) == 3
    assert max(map(max, significant)) < 6


def test_differences_without_spread_have_the_p_of_the_sign_test():
    assert p_value(np.full(5, 0.75), np.full(5, 0.5)) == pytest.approx(2**-4)
    assert p_value(np.full(5, 0.5), np.full(5, 0.5)) == 1
    assert p_value(np.array([0.3, 0.4, 0.7]), np.array([0.1, 0.2, 0.5])) == pytest.approx(2**-2)  # equal up to rounding
