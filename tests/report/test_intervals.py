import pytest

from seeupo.core.statistics import avg_at_k
from seeupo.report.intervals import score_intervals
from seeupo.runs.trajectory_rows import TrajectoryRow


def rows(groups):
    """Return rows for groups of (score, reward), or of scores that are also the rewards."""
    pairs = [[each if isinstance(each, tuple) else (each, each) for each in group] for group in groups]
    return [
        [TrajectoryRow("a", "g", "t", "goal", "ok", score, reward, None, 1, b"") for score, reward in group]
        for group in pairs
    ]


def test_intervals_equal_those_of_evaluations_with_groups_as_tasks():
    groups = [[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
    expected = avg_at_k(groups, 4)
    scores = score_intervals(rows(groups))
    for found in (scores.success, scores.reward):
        assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_partial_scores_are_not_successes():
    found = score_intervals(rows([[0.5, 1.0], [0.5, 0.5]]))
    assert found.success.value == 0.25
    assert found.reward.value == 0.625


def test_failed_attempts_are_left_out():
    assert score_intervals(rows([[None, 1.0], [None, None]])).success.value == 1
    assert score_intervals(rows([[None]])).success is None
    assert score_intervals([]).reward is None


def test_success_comes_from_scores_and_reward_from_rewards():
    scores = score_intervals(rows([[(1.0, 1.5), (0.0, -1.0)], [(0.0, 0.0), (0.25, 0.25)]]))
    assert scores.success.value == 0.25
    assert scores.reward.value == 0.1875


def test_unbounded_rewards_have_no_interval():
    found = score_intervals(rows([[20.0, 30.0]])).reward
    assert (found.value, found.low, found.high) == (25.0, None, None)


def test_rewards_that_are_no_scores_have_no_interval():
    found = score_intervals(rows([[0.25, 0.5]]), bounded=False)
    assert (found.reward.value, found.reward.low, found.reward.high) == (0.375, None, None)
    assert found.success.low is not None


def test_interval_contains_the_mean_of_groups_of_different_sizes():
    found = score_intervals(rows([[1.0]] * 30 + [[0.0] * 1000])).success
    assert found.low <= found.value <= found.high
