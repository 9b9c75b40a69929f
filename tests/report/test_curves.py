import json
import math
from dataclasses import replace

import pytest

from report.decoding import decoded
from report.made_runs import made_run
from seeupo.core.statistics import avg_at_k
from seeupo.report.curves import curves, evaluation_k, turn_maps, turn_mean
from seeupo.runs.reader import read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_run(tmp_path_factory.mktemp("runs") / "run", iterations=3, groups=4, size=4)


def with_records(run, tmp_path, change):
    """Return the same run with changed metrics."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    other = tmp_path / "run"
    other.mkdir()
    (other / "metrics.jsonl").write_text("".join(json.dumps(change(line)) + "\n" for line in lines))
    return read_run(other)


def test_complete_run_has_every_curve(run):
    keys = [curve["key"] for curve in decoded(run).runs[0]["curves"]]
    assert keys == [
        "success", "reward", "pass_at_k", "entropy", "kl", "grad_norm", "dead_groups", "sampler_gap", "tokens",
        "draft_acceptance", "seconds",
    ]  # fmt: skip


def test_training_curve_has_recorded_values_and_intervals_over_groups(run):
    page = decoded(run)
    records = {record["iteration"]: record for record in read_run(run).records["iteration"]}
    groups = {}
    for row, _ in page.rows():
        if row["phase"] == 0:
            groups.setdefault((row["iteration"], row["group"]), []).append(row["reward"])
    points = page.curve("success")["training"]
    assert [point[0] for point in points] == [1, 2, 3]
    for iteration, value, low, high in points:
        assert value == pytest.approx(records[iteration]["success"], abs=1e-5)
        expected = avg_at_k([rewards for (number, _), rewards in groups.items() if number == iteration], 4)
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-5)


def test_held_out_curves_match_the_evaluations(run):
    page, evaluations = decoded(run), read_run(run).evaluations
    for key, name in (("success", "avg@2"), ("pass_at_k", "pass@2")):
        expected = [[each.iteration, *each.summary[name].values()] for each in evaluations]
        assert page.curve(key)[f"held-out {name}"] == [pytest.approx(point, abs=1e-5) for point in expected]


def test_other_curves_match_the_records(run):
    page, records = decoded(run), read_run(run).records["iteration"]
    assert page.curve("kl")["to the behavior policy"][0] == [1, pytest.approx(2e-4), None, None]
    assert page.curve("grad_norm")["training"][0][1] == 1.5
    assert [point[1] for point in page.curve("tokens")["training"]] == [each["action_tokens"] for each in records]
    assert page.curve("draft_acceptance")["training"][0] == [1, 0.75, None, None]
    dead = [each["dead_groups"] / each["groups"] for each in records]
    assert [point[1] for point in page.curve("dead_groups")["training"]] == dead
    seconds = page.curve("seconds")
    assert list(seconds) == ["collect", "update", "evaluate"]
    assert seconds["evaluate"] == [[0, 3.0, None, None], [3, 3.0, None, None]]


def test_turn_maps_have_every_turn_in_update_order(run):
    maps = {each["key"]: each for each in decoded(run).runs[0]["turn_maps"]}
    assert list(maps) == ["ratio_mean", "clip_fraction", "carry_sd", "live_turns", "kl"]
    assert (maps["ratio_mean"]["scale"], maps["ratio_mean"]["center"]) == ("diverging", 1.0)
    assert {(each["scale"], each["center"]) for key, each in maps.items() if key != "ratio_mean"} == {
        ("sequential", None)
    }
    assert maps["carry_sd"]["cells"][:3] == [[1, 3, 0.0, 1], [1, 2, 0.1, 2], [1, 1, 0.2, 3]]
    assert len(maps["kl"]["cells"]) == 9


def test_expected_gain_has_a_curve_with_its_interval_and_a_map(run, tmp_path):
    def change(line):
        turns = [{**turn, "expected_gain": 0.01 * turn["turn"] - 0.01} for turn in line.get("turns", ())]
        return {**line, "turns": turns, "algorithm": {"expected_gain": 0.02, "expected_gain_se": 0.01}}

    read = with_records(run, tmp_path, change)
    found = {curve["key"]: curve for curve in curves(read, {})}
    (series,) = found["expected_gain"]["series"]
    assert series["points"][0] == pytest.approx([1, 0.02, 0.0004, 0.0396])
    (gains,) = [each for each in turn_maps(read.records["iteration"]) if each["key"] == "expected_gain"]
    assert (gains["scale"], gains["center"]) == ("diverging", 0.0)
    assert {cell[1]: cell[2] for cell in gains["cells"][:3]} == {3: 0.01, 2: 0.0, 1: -0.01}


def test_trust_region_has_maps_of_the_kept_step_and_its_kl(run, tmp_path):
    def change(line):
        turns = [{**turn, "step_scale": 0.5, "pool_kl": 0.01 * turn["turn"]} for turn in line.get("turns", ())]
        return {**line, "turns": turns}

    maps = {each["key"]: each for each in turn_maps(with_records(run, tmp_path, change).records["iteration"])}
    assert {cell[2] for cell in maps["step_scale"]["cells"]} == {0.5}
    assert {cell[1]: cell[2] for cell in maps["pool_kl"]["cells"]} == {3: 0.02, 2: 0.01, 1: 0.0}


def test_algorithm_without_turns_has_no_turn_maps(run, tmp_path):
    def change(line):
        return {**line, "turns": [], "algorithm": {"kl": 0.25}, "sampler_gap": None}

    read = with_records(run, tmp_path, change)
    found = {curve["key"]: curve for curve in curves(read, {})}
    assert turn_maps(read.records["iteration"]) == []
    assert [point[1] for point in found["kl"]["series"][0]["points"]] == [0.25] * 3
    assert not {"grad_norm", "sampler_gap"} & set(found)
    assert found["success"]["series"][0]["points"][0][2:] == [None, None]


@pytest.mark.parametrize("value", [None, "x", [], {}, [1, None], {"turn": None}])
def test_values_of_wrong_types_are_skipped(run, tmp_path, value):
    keys = ("turns", "algorithm", "timings", "success", "groups", "entropy", "avg@2", "action_tokens")
    read = with_records(run, tmp_path, lambda line: {**line, **dict.fromkeys(keys, value)})
    found = {curve["key"] for curve in curves(read, {})}
    assert "reward" in found
    assert not {"success", "kl", "tokens", "seconds", "dead_groups"} & found
    assert turn_maps(read.records["iteration"]) == []


def test_success_is_computed_from_trajectories_without_metrics(run, tmp_path):
    other = made_run(tmp_path / "run", iterations=2)
    (other / "metrics.jsonl").write_text("")
    page = decoded(other)
    rewards = [row["reward"] for row, _ in page.rows() if (row["phase"], row["iteration"]) == (0, 1)]
    iteration, value, low, high = page.curve("success")["training"][0]
    assert (iteration, value) == (1, pytest.approx(sum(rewards) / len(rewards), abs=1e-5))
    assert low <= value <= high
    assert [curve["key"] for curve in page.runs[0]["curves"]] == ["success", "reward", "pass_at_k"]


def test_k_comes_from_evaluations_or_the_recipe(run):
    read = read_run(run)
    assert evaluation_k(read) == 2
    assert evaluation_k(replace(read, evaluations=[], recipe={"evaluation": {"k": 3}})) == 3
    assert evaluation_k(replace(read, evaluations=[], recipe={})) is None


def test_turn_mean_skips_missing_values_and_weights_by_used_turns():
    record = {"turns": [{"kl": 1.0}, {"kl": None}, {"kl": 3.0}, {}]}
    assert turn_mean(record, "kl") == 2.0
    assert turn_mean({"turns": [{"kl": 1.0, "used_turns": 3.0}, {"kl": 5.0, "used_turns": 1.0}]}, "kl") == 2.0
    assert turn_mean(record, "grad_norm") is None


@pytest.mark.parametrize("value", [10**308, 1e308])
def test_turn_mean_of_odd_values_is_a_number_or_none(value):
    assert turn_mean({"turns": [{"kl": 1.0, "used_turns": 1.0}, {"kl": 2.0, "used_turns": -1.0}]}, "kl") == 1.0
    assert turn_mean({"turns": [{"kl": 1.0, "used_turns": -1.0}]}, "kl") is None
    assert turn_mean({"turns": [{"kl": value, "used_turns": value}]}, "kl") == math.inf
