import importlib.util
import itertools
import math
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist, fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeupo.core.statistics import (
    avg_at_k,
    count_successes,
    difference_interval,
    mean_interval,
    paired_difference,
    pass_at_k,
)

ROOT = Path(__file__).parents[2]

score = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1))
panels = st.lists(st.lists(score, min_size=1, max_size=6), min_size=1, max_size=12)
counts = st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, n)))


def values(estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


# avg@k


def test_tasks_have_equal_weight_for_any_number_of_attempts():
    estimate = avg_at_k([[1, 0], [1, 1, 1, 0.5], [0, 0, 0]], 2)
    assert estimate.value == pytest.approx((0.5 + 0.875 + 0) / 3)
    assert estimate.tasks == 3


@given(panels, st.integers(1, 6))
def test_more_attempts_than_k_give_the_expectation_over_subsets_of_k(scores, k):
    scores = [attempts for attempts in scores if len(attempts) >= k] or [[0.25] * k]
    subsets = [fmean(fmean(chosen) for chosen in itertools.combinations(attempts, k)) for attempts in scores]
    assert avg_at_k(scores, k).value == pytest.approx(fmean(subsets))


# pass@k


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_success(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
        assert pass_at_k([c], [n], k).value == pytest.approx(sum(map(max, subsets)) / len(subsets), abs=1e-15)


def test_pass_at_k_by_hand():
    # 1 - C(3,2)/C(4,2) = 1/2, 1 - C(6,2)/C(8,2) = 13/28, and all or nothing.
    assert pass_at_k([1, 2, 5, 0], [4, 8, 5, 3], 2).value == pytest.approx((1 / 2 + 13 / 28 + 1 + 0) / 4)


@pytest.mark.parametrize(("c", "n", "k"), [(1, 2000, 7), (3, 2000, 1000), (40, 1000, 25), (1999, 2000, 2), (5, 99, 95)])
def test_many_attempts_neither_overflow_nor_lose_digits(c, n, k):
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert pass_at_k([c], [n], k).value == pytest.approx(float(exact), rel=1e-10)


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
def test_pass_at_k_is_unbiased(p):
    n, k = 9, 4
    estimates = [pass_at_k([c], [n], k).value for c in range(n + 1)]
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert np.dot(estimates, chances) == pytest.approx(1 - (1 - p) ** k)


@given(counts)
def test_pass_at_k_grows_with_successes_and_with_attempts(case):
    c, n, k = case
    rate = pass_at_k([c], [n], k).value
    assert 0 <= rate <= 1
    if c < n:
        assert pass_at_k([c + 1], [n], k).value >= rate
    if k < n:
        assert pass_at_k([c], [n], k + 1).value >= rate


@given(panels)
def test_pass_at_1_is_the_success_rate(scores):
    successes = [[float(score == 1) for score in attempts] for attempts in scores]
    assert pass_at_k(*count_successes(scores), 1).value == pytest.approx(avg_at_k(successes, 1).value)


def test_only_a_score_of_one_is_a_success():
    successes, totals = count_successes([[1, 1.0, 0.999], [0.5], [0, 1]])
    assert (successes.tolist(), totals.tolist()) == ([2, 0, 1], [3, 1, 2])


# Intervals


@given(panels)
def test_the_interval_contains_the_mean_and_has_a_width(scores):
    estimate = avg_at_k(scores, 1)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.low < estimate.high


@given(panels, st.randoms(use_true_random=False))
def test_the_order_of_tasks_and_attempts_does_not_matter(scores, random):
    shuffled = [random.sample(attempts, len(attempts)) for attempts in scores]
    random.shuffle(shuffled)
    assert avg_at_k(shuffled, 1) == avg_at_k(scores, 1)
    assert pass_at_k(*count_successes(shuffled), 1) == pass_at_k(*count_successes(scores), 1)


@given(panels)
def test_counting_failures_mirrors_the_interval(scores):
    mean, low, high = values(avg_at_k(scores, 1))
    mirrored = values(avg_at_k([[1 - score for score in attempts] for attempts in scores], 1))
    assert mirrored == pytest.approx((1 - mean, 1 - high, 1 - low), abs=1e-6)


@given(panels, st.data())
def test_a_better_score_raises_the_mean(scores, data):
    task = data.draw(st.integers(0, len(scores) - 1))
    better = [list(attempts) for attempts in scores]
    better[task][0] = data.draw(st.floats(better[task][0], 1))
    assert avg_at_k(better, 1).value >= avg_at_k(scores, 1).value - 1e-15


@pytest.mark.parametrize("tasks", [1, 2, 3, 10, 100])
def test_one_more_success_raises_both_ends(tasks):
    low, high = mean_interval(np.tri(tasks + 1, tasks, -1))
    assert (np.diff(low) > 0).all()
    assert (np.diff(high) > 0).all()


@pytest.mark.parametrize("successes", [4, 10, 50, 90, 96])
def test_binary_tasks_get_wilsons_interval(successes):
    tasks, z = 100, NormalDist().inv_cdf(0.975)
    z += (z**3 + z) / (4 * tasks)
    assert z == pytest.approx(1.9842, abs=1e-3)  # Student's t with 99 degrees of freedom
    estimate = pass_at_k([1] * successes + [0] * (tasks - successes), [1] * tasks, 1)
    for end in (estimate.low, estimate.high):
        assert abs(estimate.value - end) == pytest.approx(z * math.sqrt(end * (1 - end) / tasks))


def test_other_tasks_get_wilsons_interval_for_their_spread():
    # Mean 1/2, squares 8 * 0.02 * 8 / 7 with the sample variance, of 2 at most; an eighth is added to both.
    share, z = (8 * 0.02 * 8 / 7 + 0.125) / (2 + 0.125), NormalDist().inv_cdf(0.975)
    z += (z**3 + z) / (4 * 8)
    estimate = avg_at_k([[0.3], [0.5], [0.5], [0.7]] * 2, 1)
    for end in (estimate.low, estimate.high):
        assert abs(estimate.value - end) == pytest.approx(z * math.sqrt(end * (1 - end) * share / 8))


def test_variation_within_tasks_only_narrows_the_interval():
    alike, split = avg_at_k([[1, 0, 1, 0]] * 50, 4), avg_at_k([[1, 1, 1, 1], [0, 0, 0, 0]] * 25, 4)
    assert alike.value == split.value == 0.5
    assert alike.high - alike.low < 0.15 * (split.high - split.low)


def test_when_all_or_none_succeed_the_interval_still_has_a_width():
    none, every = avg_at_k([[0] * 4] * 100, 4), avg_at_k([[1] * 4] * 100, 4)
    assert values(none) == (0, 0, pytest.approx(0.0379, abs=1e-4))
    assert values(every) == (1, pytest.approx(1 - 0.0379, abs=1e-4), 1)
    one = avg_at_k([[1]], 1)
    assert one.low < 0.3


# Paired differences


def test_the_difference_is_taken_task_by_task():
    estimate = paired_difference([[1, 1], [0.5], [0, 1, 0.5]], [[1], [0, 0], [1, 1]])
    assert estimate.value == pytest.approx((0 + 0.5 - 0.5) / 3)
    assert estimate.tasks == 3
    by_pass = paired_difference([[1, 0, 0], [0, 0]], [[1, 0], [0.5, 0, 0]], pass_k=2)
    assert by_pass.value == pytest.approx((2 / 3 - 1 + 0) / 2)


pairs = st.lists(
    st.tuples(st.lists(score, min_size=1, max_size=4), st.lists(score, min_size=1, max_size=4)), min_size=1, max_size=12
)


@given(pairs, st.randoms(use_true_random=False))
def test_differences_are_bounded_and_antisymmetric(tasks, random):
    a, b = zip(*tasks, strict=True)
    estimate = paired_difference(a, b)
    assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.low < estimate.high
    mean, low, high = values(estimate)
    assert values(paired_difference(b, a)) == pytest.approx((-mean, -high, -low), abs=1e-6)
    random.shuffle(tasks)
    assert paired_difference(*zip(*tasks, strict=True)) == estimate


def test_pairing_narrows_the_interval_if_both_find_the_same_tasks_hard():
    a = [[1, 1, 1, 1], [1, 0, 0, 0]] * 50
    b = [[1, 1, 1, 0], [0, 0, 0, 0]] * 50
    paired, shuffled = paired_difference(a, b), paired_difference(a, b[::-1])
    assert paired.value == shuffled.value == 0.25
    assert paired.high - paired.low < 0.2 * (shuffled.high - shuffled.low)


def test_ties_do_not_prove_that_there_is_no_difference():
    ten, hundred = (paired_difference([[1]] * tasks, [[1]] * tasks) for tasks in (10, 100))
    assert hundred.value == 0
    # A policy that loses 3 tasks in 100 ties on all of a hundred in one panel of twenty.
    assert hundred.low < -0.03 < 0.03 < hundred.high
    assert ten.high - ten.low > 5 * (hundred.high - hundred.low)
    sure = paired_difference([[1]] * 100, [[0]] * 100)
    assert (sure.value, sure.high) == (1, 1)
    assert 0.9 < sure.low < 0.99


# Coverage. The fraction of panels whose interval contains the truth has a standard error of 0.44 points, so the bounds
# of 95 +- 2 points are widened by three of these. `benchmarks/interval_coverage.py` uses more panels per cell.

specification = importlib.util.spec_from_file_location("interval_coverage", ROOT / "benchmarks/interval_coverage.py")
simulation = importlib.util.module_from_spec(specification)
specification.loader.exec_module(simulation)

PANELS = 2500
NOISE = 3 * math.sqrt(0.95 * 0.05 / PANELS)
LOWEST, HIGHEST = 0.93 - NOISE, 0.97 + NOISE


@pytest.mark.parametrize("concentration", simulation.CONCENTRATIONS)
def test_intervals_of_averages_cover(concentration):
    rng = np.random.default_rng(5)
    coverage = [simulation.avg_coverage(concentration, mean, panels=PANELS, rng=rng) for mean in simulation.MEANS]
    assert min(coverage) >= LOWEST, coverage
    assert max(coverage) <= HIGHEST, coverage
    assert 0.945 <= fmean(coverage) <= 0.965


@pytest.mark.parametrize("deviation", simulation.LOGIT_DEVIATIONS)
def test_intervals_of_averages_cover_in_a_family_they_were_not_chosen_on(deviation):
    rng = np.random.default_rng(6)
    coverage = [simulation.unseen_coverage(deviation, mean, panels=PANELS, rng=rng) for mean in simulation.LOGIT_MEANS]
    assert min(coverage) >= LOWEST, coverage
    assert max(coverage) <= HIGHEST, coverage


@pytest.mark.parametrize("attempts", [4, 8])
@pytest.mark.parametrize("concentration", simulation.CONCENTRATIONS)
def test_intervals_of_pass_rates_cover(concentration, attempts):
    rng = np.random.default_rng(7)
    for mean in simulation.MEANS:
        coverage = simulation.pass_coverage(concentration, mean, attempts=attempts, panels=PANELS, rng=rng)
        assert coverage >= LOWEST, mean
        # Closer to 1 most panels have no failure, and an interval that includes 1 always covers.
        if simulation.true_pass_rate(concentration, mean, simulation.K) <= 0.98 + 1e-9:
            assert coverage <= HIGHEST, mean


@pytest.mark.parametrize("same_order", [True, False])
@pytest.mark.parametrize("concentration", simulation.CONCENTRATIONS)
def test_intervals_of_differences_cover(concentration, same_order):
    rng = np.random.default_rng(8)
    for means in simulation.PAIRS:
        coverage = simulation.paired_coverage(concentration, means, same_order=same_order, panels=PANELS, rng=rng)
        assert coverage >= LOWEST, means
        # Where tasks rarely differ, intervals are wider than necessary; elsewhere they must not be.
        if means in [(0.1, 0.3), (0.5, 0.9)]:
            assert coverage <= HIGHEST, means


def test_the_simulation_detects_an_interval_with_poor_coverage():
    def normal(panel):
        half = 1.96 * panel.std(axis=-1, ddof=1) / math.sqrt(panel.shape[-1])
        return panel.mean(axis=-1) - half, panel.mean(axis=-1) + half

    rng = np.random.default_rng(9)
    for concentration in simulation.CONCENTRATIONS:
        for mean in (0.02, 0.98):
            coverage = simulation.avg_coverage(concentration, mean, panels=PANELS, rng=rng, interval=normal)
            assert coverage < LOWEST
    assert simulation.avg_coverage(3, 0.5, panels=PANELS, rng=rng, interval=normal) > LOWEST


# Invalid arguments


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: avg_at_k([], 1), r"scores = \[\]"),
        (lambda: avg_at_k([[1, 0], [1]], 2), r"task 1 has 1 attempt\(s\): avg@2 needs at least 2"),
        (lambda: avg_at_k([[1], []], 1), r"task 1 has 0 attempt\(s\)"),
        (lambda: avg_at_k([[1]], 0), "k = 0: expected an integer >= 1"),
        (lambda: avg_at_k([[1, 1.5]], 1), r"score of task 0, attempt 1 = 1.5: expected a number in \[0, 1\]"),
        (lambda: avg_at_k([[1], [math.nan]], 1), "score of task 1, attempt 0 = nan"),
        (lambda: avg_at_k([["1"]], 1), "score of task 0, attempt 0 = '1': expected a number"),
        (lambda: pass_at_k([], [], 1), r"successes = \[\]"),
        (lambda: pass_at_k([1, 1, 0], [4, 3, 2], 4), r"task 1 has 3 attempt\(s\): pass@4 needs at least 4"),
        (lambda: pass_at_k([1], [4], 2.0), "k = 2.0: expected an integer"),
        (lambda: paired_difference([[1]], [[1], [0]]), "scores_b has 2 tasks: expected 1"),
        (lambda: paired_difference([[1, 0]], [[1]], pass_k=2), r"task 0 has 1 attempt\(s\): pass@2"),
        (lambda: paired_difference([], []), r"scores = \[\]"),
        (lambda: mean_interval(np.array([0.5, 1.1])), r"values: expected numbers in \[0, 1\]"),
        (lambda: mean_interval(np.array([])), r"values = \[\]"),
        (lambda: difference_interval(np.array([math.nan])), r"values: expected numbers in \[-1, 1\]"),
    ],
)
def test_invalid_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()
