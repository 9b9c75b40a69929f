"""Tables of made-up runs with known differences."""

import json
from dataclasses import replace

import numpy as np
import pytest

from comparison.small_study import made_result
from seeupo.comparison.analysis import (
    arm_summary,
    curve,
    different_starts,
    has_collapsed,
    largest_drop,
    pairwise_differences,
    verdict,
)
from seeupo.comparison.comparison import Tuning
from seeupo.comparison.sentences import tuning_sentences

ITERATIONS = 20


def arm(rng, levels, gain):
    """Return runs whose rewards rise around a level of each seed, `gain` higher for the better arm."""
    ramp = np.linspace(0, 0.3, ITERATIONS)
    return [made_result((level + gain + ramp + 0.01 * rng.standard_normal(ITERATIONS)).tolist()) for level in levels]


@pytest.mark.parametrize("seeds", [5, 10, 20])
def test_known_difference_is_found_with_its_sign(seeds):
    rng = np.random.default_rng(seeds)
    levels = 0.3 + 0.1 * rng.standard_normal(seeds)  # seeds differ more than arms
    results = {"base": arm(rng, levels, 0.0), "good": arm(rng, levels, 0.05), "bad": arm(rng, levels, -0.05)}
    good, bad = (row["metrics"]["reward_auc"] for row in pairwise_differences(results, ITERATIONS))
    assert (good["verdict"], bad["verdict"]) == ("Better", "Worse")
    assert good["difference"]["low"] < 0.05 < good["difference"]["high"]
    assert bad["difference"]["high"] < 0
    assert (good["seeds_above"], bad["seeds_above"]) == (seeds, 0)
    assert good["probability_of_improvement"]["value"] > 0.5 > bad["probability_of_improvement"]["value"]


def test_identical_arms_have_no_significant_difference_in_95_percent():
    rng = np.random.default_rng(0)
    verdicts = []
    for _ in range(400):
        levels = 0.4 + 0.05 * rng.standard_normal(5)
        noise = 0.03 * rng.standard_normal((2, 5))
        one, other = ([made_result([value]) for value in levels + each] for each in noise)
        (row,) = pairwise_differences({"one": one, "other": other}, 1)
        verdicts.append(row["metrics"]["reward_auc"]["verdict"])
    share = verdicts.count("No significant difference") / len(verdicts)
    assert share == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / 400) ** 0.5)


def test_summary_is_json_and_within_bounds():
    rng = np.random.default_rng(1)
    summary = arm_summary(arm(rng, [0.02, 0.6, 0.3], 0.0), ITERATIONS)
    json.dumps(summary, allow_nan=False)
    assert 0 <= summary["metrics"]["reward_auc"]["low"] <= summary["metrics"]["reward_auc"]["high"] <= 1
    assert summary["cost"] == {"optimizer_steps": 80, "tokens": 2000, "seconds": 5.0}
    assert len(summary["reward_curve"]) == ITERATIONS
    assert [row[0] for row in summary["score_curve"]] == [ITERATIONS]
    one = arm_summary(arm(rng, [0.5], 0.0), ITERATIONS)
    assert one["metrics"]["reward_auc"]["low"] is None


def test_runs_that_diverged_count_as_zero_afterwards():
    stopped = made_result([0.8, 0.8], diverged="the gradient norm is nan")
    summary = arm_summary([stopped, stopped], 4)
    assert summary["metrics"]["reward_auc"]["value"] == pytest.approx(0.4)
    assert summary["metrics"]["final_score"]["value"] == 0
    assert (summary["stability"]["diverged"], summary["reward_curve"][-1][1]) == (2, 0.0)
    whole = made_result([0.8] * 4, evaluations=[[2, 0.4], [4, 0.6]])
    early = replace(stopped, evaluations=[])
    assert [row[:2] for row in arm_summary([whole, early], 4)["score_curve"]] == [[2, 0.2], [4, 0.3]]


def test_runs_that_diverged_gain_nothing_where_rewards_are_negative():
    stopped = made_result([-0.5, -0.9], diverged="the gradient norm is nan")
    assert arm_summary([stopped, stopped], 4)["metrics"]["reward_auc"]["value"] == pytest.approx(-0.8)


def test_seeds_whose_arms_started_from_other_weights_are_noted():
    one, other, old = (made_result([0.5], start=start) for start in ("a", "b", ""))
    assert different_starts({"x": [one, one, old], "y": [one, other, other]}, [5, 6, 7]) == [6]


def test_tuning_notes_settings_that_score_alike():
    def arm(name, *scores):
        tried = [{"settings": {"rate": n}, "scores": list(each)} for n, each in enumerate(scores)]
        return {"name": name, "tried": tried, "at_the_end_of_the_grid": []}

    arms = [
        arm("alike", (0.45, 0.45), (0.4502, 0.45)),
        arm("apart", (0.45, 0.45), (0.5, 0.5)),
        arm("one", (0.45, 0.45)),
    ]
    _, sentence = tuning_sentences({"grid": {"rate": [0, 1]}, "tuning_seeds": [0, 1], "arms": arms})
    assert sentence == "The best two settings differ by less than 0.001 on the tuning seeds: alike."


def test_tuning_notes_the_ends_of_the_grid():
    def tuning(best):
        return Tuning({"rate": best}, ())

    assert tuning(1).at_the_end({"rate": [4, 1, 2]}) == ["rate"]
    assert tuning(2).at_the_end({"rate": [4, 1, 2]}) == []
    assert tuning(2).at_the_end({"rate": [2, 4]}) == ["rate"]
    assert tuning(2).at_the_end({"rate": [2]}) == []


def test_drops_are_measured_on_smoothed_rewards():
    rising, falling = [0.1 * n for n in range(10)], [0.0] * 5 + [1.0] * 5 + [0.2] * 10
    assert largest_drop(rising) == 0
    assert largest_drop(falling) == pytest.approx(0.8)
    assert largest_drop([1.0, 0.0] * 10) == pytest.approx(0.2)  # noise is averaged
    assert has_collapsed(falling)
    assert not has_collapsed(rising)
    assert not has_collapsed([])
    assert not has_collapsed([0.0] * 8)


def test_curves_have_the_iterations_that_all_runs_have():
    rows = curve([[(0, 0.1), (5, 0.4)], [(5, 0.6)]], bounded=True)
    assert [row[:2] for row in rows] == [[5, 0.5]]
    assert curve([[(0, 0.1)], []], bounded=True) == []


def test_verdict_of_one_seed_is_inconclusive():
    assert verdict(0.5, 0.0, 1) == "Inconclusive"
    assert verdict(-0.5, 0.01, 5) == "Worse"


def test_shares_are_bounded_by_one_also_where_shaped_rewards_are_not():
    results = [made_result([reward]) for reward in (0.1, 1.1, 0.9)]
    metrics = arm_summary(results, 1)["metrics"]
    assert metrics["reward_auc"]["high"] > 1
    assert all(metrics[name]["low"] >= 0 and metrics[name]["high"] <= 1 for name in ("final_score", "success_auc"))
