import pytest

from seeupo.core.statistics import avg_at_k
from seeupo.report.intervals import measure


def test_intervals_are_those_of_evaluations_with_groups_as_tasks():
    groups = [[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
    expected = avg_at_k(groups, 4)
    for found in (measure(groups, "none").success, measure(groups, "none").reward):
        assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_part_of_a_score_is_no_success():
    found = measure([[0.5, 1.0], [0.5, 0.5]], "none")
    assert found.success.value == 0.25
    assert found.reward.value == 0.625


def test_failed_attempts_are_not_scored():
    assert measure([[None, 1.0], [None, None]], "none").success.value == 1
    assert measure([[None]], "none").success is None
    assert measure([], "none").reward is None


def test_shaped_rewards_have_their_own_success_and_bounds():
    found = measure([[1.5, -1.0], [0.0, 0.25]], "paper_code")
    assert found.success.value == 0.25
    assert -1 <= found.reward.low <= found.reward.value == 0.1875 <= found.reward.high <= 1.5


def test_rewards_beyond_all_bounds_have_no_interval():
    found = measure([[20.0, 30.0]], "none").reward
    assert (found.value, found.low, found.high) == (25.0, None, None)


def test_the_interval_holds_the_mean_of_groups_of_different_sizes():
    found = measure([[1.0]] * 30 + [[0.0] * 1000], "none").success
    assert found.low <= found.value <= found.high
