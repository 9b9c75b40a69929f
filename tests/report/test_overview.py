import json
import shutil
from dataclasses import replace

import pytest

from report.decoding import decoded
from report.made_runs import add_evaluation, cut, made_run, odd_run
from seeupo.evaluation.results import VERDICTS, compare
from seeupo.report.overview import run_overview
from seeupo.report.selection import Selection
from seeupo.runs.reader import read_run


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return made_run(tmp_path / "runs" / "first", iterations=2)


def overview(run):
    return decoded(run).runs[0]


def with_evaluations(run, before, after):
    """Return the overview of the same run with other evaluations."""
    for iteration, solved in ((0, before), (2, after)):
        (run / "evaluations" / f"{iteration:05d}.jsonl.gz").unlink()
        add_evaluation(run, iteration, solved, tasks=12)
    return overview(run)


def test_improved(run):
    found = overview(run)
    read = read_run(run)
    gain = compare(*(each.evaluation for each in read.evaluations))["avg@2"]
    assert (found["verdict"], found["verdict_label"]) == ("improved", VERDICTS["improved"])
    for part in ("tiny on pocket solves 1.00", "0.25 before", f"+0.75, 95% interval {gain['low']:+.2f}", "12 tasks"):
        assert part in found["sentence"]
    assert [row["name"] for row in found["scores"]] == ["avg@2", "pass@2"]
    assert found["scores"][0]["before"]["value"] == 0.25
    assert found["scores"][0]["difference"] == pytest.approx(gain, abs=1e-5)
    assert found["k"] == 2


def test_regressed(run):
    found = with_evaluations(run, 1.0, 0.25)
    assert found["verdict"] == "regressed"
    assert "difference -0.75" in found["sentence"]


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.5), (0.5, 0.55), (0.55, 0.5)])
def test_no_significant_change(run, before, after):
    found = with_evaluations(run, before, after)
    assert found["verdict"] == "no_change"
    gain = found["scores"][0]["difference"]
    assert (gain["value"] > 0) == (after > before)


def test_partial_scores_are_not_called_solved(run):
    path = run / "evaluations" / "00002.json"
    record = json.loads(path.read_text())
    record["episodes"][0]["score"] = 0.5
    path.write_text(json.dumps(record))
    assert "scores 0.98" in overview(run)["sentence"]


def test_single_evaluation_is_inconclusive(run):
    (run / "evaluations" / "00002.json").unlink()
    found = overview(run)
    assert found["verdict"] == "inconclusive"
    assert "avg@2 0.25 before" in found["sentence"]
    assert [row["after"] for row in found["scores"]] == [None, None]
    assert found["scores"][0]["difference"] is None


def test_missing_evaluation_is_inconclusive(run):
    shutil.rmtree(run / "evaluations")
    found = overview(run)
    assert (found["verdict"], found["scores"]) == ("inconclusive", [])
    assert "not evaluated" in found["sentence"]


def test_evaluations_of_different_tasks_are_not_compared(run):
    add_evaluation(run, 2, 1.0, tasks=12, panel="other", trajectories=False)
    found = overview(run)
    assert found["verdict"] == "inconclusive"
    assert "different tasks" in " ".join(found["missing"])
    assert found["scores"][0]["after"]["value"] == 1.0


def test_killed_run_names_its_last_iteration(run):
    (run / "summary.json").unlink()
    found = overview(run)
    assert "after 2 iterations, 0.25 before" in found["sentence"]
    assert "no summary.json" in " ".join(found["missing"])


def test_command_repeats_the_run_without_absolute_paths(run, tmp_path, monkeypatch):
    assert overview(run)["command"] == "seeupo train runs/first/recipe.toml --out runs/first-again"
    monkeypatch.chdir(run)
    assert overview(run)["command"] == "seeupo train ./recipe.toml --out ../first-again"
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert str(tmp_path) not in json.dumps(overview(run))
    info = json.loads((run / "env_info.json").read_text())
    (run / "env_info.json").write_text(json.dumps({**info, "custom_environment": "Adding"}))
    found = overview(run)
    assert found["command"] == "seeupo.train('first/recipe.toml', environment=..., run_dir='first-again')"
    assert found["environment"] == "Adding"


def test_details_contain_only_known_values(run):
    details = dict(overview(run)["details"])
    assert details["Iterations"] == "2 of 2"
    assert details["Seed"] == "0"
    assert details["Time"] == "1.5 minutes"
    assert details["Stop reason"] == "2 iterations done"
    assert all(isinstance(value, str) for value in details.values())
    for name in ("recipe.toml", "env_info.json", "summary.json"):
        (run / name).write_text("")
    assert set(dict(overview(run)["details"])) == {
        "Iterations", "Algorithm", "Held-out attempts per task", "Held-out task panel", "Time", "Sampled tokens",
    }  # fmt: skip


def test_details_name_the_best_checkpoint(run):
    summary = json.loads((run / "summary.json").read_text())
    summary["best"] = {"iteration": 1, "avg": 0.5, "checkpoint": "checkpoints/00001"}
    (run / "summary.json").write_text(json.dumps(summary))
    assert dict(overview(run)["details"])["Best checkpoint"] == "checkpoints/00001 (after iteration 1, avg@2 0.50)"


def test_model_folder_is_shown_without_its_path(run):
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace('"tiny"', '"/home/user/models/mine"'))
    assert overview(run)["model"] == "mine"


def test_warnings_contain_alarms_and_evaluation_failures(tmp_path):
    found = overview(odd_run(tmp_path / "odd"))["warnings"]
    texts = " ".join(each["text"] for each in found)
    assert {each["iteration"] for each in found} == {1}
    assert len(found) >= 3
    assert "0.5" in texts  # the sampler-trainer gap
    assert "2 of 8 evaluation attempts" in texts
    assert not any(each["text"].startswith("iteration") for each in found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"turns": [{"turn": 0, "carry_max": 20.0}]}, "20"),
        ({"turns": [{"turn": 0, "grad_norm": None}]}, "gradient norm"),
        ({"entropy": 0.001, "success": 0.2}, "0.001"),
        ({"success": None, "sampler_gap": 1.0}, None),
        ({"turns": "x", "algorithm": 3, "entropy": "y"}, None),
    ],
)
def test_metrics_that_raise_alarms(run, change, text):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, **change} if line["kind"] == "iteration" else line for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [each["text"] for each in overview(run)["warnings"]]
    if text is None:
        assert not any("log-probs" in each or "entropy" in each for each in found)
    else:
        assert any(text in each for each in found)


def test_report_of_metrics_alone(run):
    for name in ("recipe.toml", "env_info.json", "summary.json"):
        (run / name).unlink()
    for name in ("policy", "trajectories", "evaluations"):
        shutil.rmtree(run / name)
    found = overview(run)
    assert found["model"] == "an unknown model"
    assert found["verdict"] == "inconclusive"
    assert [curve["key"] for curve in found["curves"]][:2] == ["success", "reward"]
    assert len(found["missing"]) >= 6


def test_report_of_an_empty_run(run):
    for name in ("policy", "trajectories", "evaluations"):
        shutil.rmtree(run / name)
    for name in ("recipe.toml", "env_info.json", "summary.json", "metrics.jsonl"):
        (run / name).write_text("")
    found = overview(run)
    assert (found["curves"], found["turn_maps"], found["warnings"], found["scores"]) == ([], [], [], [])


def test_report_of_truncated_files(run):
    for path in [path for path in run.rglob("*") if path.is_file()]:
        cut(path)
    assert len(overview(run)["missing"]) > 3


def test_a_run_without_an_optimizer_step_has_a_warning(run):
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if record["kind"] == "iteration":
            record["algorithm"] = {**record.get("algorithm", {}), "optimizer_steps": 0}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    last = overview(run)["warnings"][-1]
    assert last["iteration"] == 2
    assert last["text"].startswith("no optimizer step was made in 2 iterations")


def test_totals_that_are_too_large_are_still_shown(run):
    record = {"kind": "iteration", "iteration": 1, "action_tokens": 10**308, "timings": {"collect": 10**308}}
    stored = replace(read_run(run), summary={}, records={"iteration": [record] * 1000})
    details = dict(run_overview(stored, "run", Selection())["details"])
    assert (details["Time"], details["Sampled tokens"]) == ("inf minutes", "inf")
