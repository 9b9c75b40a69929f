import json
import shutil

import pytest

from report.made_runs import add_evaluation, cut, made_run, odd_run
from report.opened import opened
from seeupo.runs.evaluations import compare
from seeupo.runs.reader import read_run


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return made_run(tmp_path / "runs" / "first", iterations=2)


def top(run):
    return opened(run).runs[0]


def again(run, before, after):
    """The same run with other evaluations."""
    for iteration, solved in ((0, before), (2, after)):
        (run / "evaluations" / f"{iteration:05d}.jsonl.gz").unlink()
        add_evaluation(run, iteration, solved, tasks=12)
    return top(run)


def test_it_worked(run):
    found = top(run)
    read = read_run(run)
    gain = compare(*(each.evaluation for each in read.evaluations))["avg@2"]
    assert found["verdict"] == "improved"
    assert found["sentence"] == (
        "It worked: tiny on pocket solves 1.00 of held-out attempts after training, 0.25 before "
        f"(difference +0.75, 95% interval {gain['low']:+.2f} to {gain['high']:+.2f}, 12 tasks)."
    )
    assert [row["name"] for row in found["scores"]] == ["avg@2", "pass@2"]
    assert found["scores"][0]["before"]["value"] == 0.25
    assert found["scores"][0]["difference"] == pytest.approx(gain, abs=1e-5)
    assert found["k"] == 2


def test_it_got_worse(run):
    found = again(run, 1.0, 0.25)
    assert found["verdict"] == "worse"
    assert found["sentence"].startswith("It got worse: tiny on pocket solves 0.25")
    assert "difference -0.75" in found["sentence"]


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.5), (0.5, 0.55), (0.55, 0.5)])
def test_no_clear_change(run, before, after):
    found = again(run, before, after)
    assert found["verdict"] == "no_clear_change"
    assert "which may be chance" in found["sentence"]
    gain = found["scores"][0]["difference"]
    assert (gain["value"] > 0) == (after > before)


def test_scores_that_are_shares_are_not_called_solved(run):
    path = run / "evaluations" / "00002.json"
    record = json.loads(path.read_text())
    record["episodes"][0]["score"] = 0.5
    path.write_text(json.dumps(record))
    assert "scores 0.98 in held-out attempts" in top(run)["sentence"]


def test_one_evaluation_leaves_the_question_open(run):
    (run / "evaluations" / "00002.json").unlink()
    found = top(run)
    assert found["verdict"] == "unknown"
    assert found["sentence"].startswith("Nobody knows whether it worked: tiny on pocket has avg@2 0.25 before")
    assert [row["after"] for row in found["scores"]] == [None, None]
    assert found["scores"][0]["difference"] is None


def test_no_evaluation_leaves_the_question_open(run):
    shutil.rmtree(run / "evaluations")
    found = top(run)
    assert (found["verdict"], found["scores"]) == ("unknown", [])
    assert "was not evaluated" in found["sentence"]


def test_evaluations_of_different_tasks_are_not_compared(run):
    add_evaluation(run, 2, 1.0, tasks=12, panel="other", trajectories=False)
    found = top(run)
    assert found["verdict"] == "unknown"
    assert "of different tasks" in " ".join(found["missing"])
    assert found["scores"][0]["after"]["value"] == 1.0


def test_a_killed_run_says_after_how_many_iterations(run):
    (run / "summary.json").unlink()
    found = top(run)
    assert "after 2 iterations, 0.25 before" in found["sentence"]
    assert "no summary.json" in " ".join(found["missing"])


def test_the_command_repeats_the_run(run, tmp_path, monkeypatch):
    assert top(run)["command"] == "seeupo train runs/first/recipe.toml --out runs/first-again"
    monkeypatch.chdir(run)
    assert top(run)["command"] == "seeupo train ./recipe.toml --out ../first-again"
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert str(tmp_path) not in json.dumps(top(run))
    facts = json.loads((run / "facts.json").read_text())
    (run / "facts.json").write_text(json.dumps({**facts, "custom_environment": "Adding"}))
    found = top(run)
    assert found["command"] == "seeupo.train('first/recipe.toml', environment=..., folder='first-again')"
    assert found["environment"] == "Adding"


def test_facts_are_texts_and_only_what_is_known(run):
    facts = dict(top(run)["facts"])
    assert facts["Iterations"] == "2 of 2"
    assert facts["Seed"] == "0"
    assert facts["Time"] == "1.5 minutes"
    assert facts["Ended because"] == "all 2 iterations are done"
    assert all(isinstance(value, str) for value in facts.values())
    for name in ("recipe.toml", "facts.json", "summary.json"):
        (run / name).write_text("")
    assert set(dict(top(run)["facts"])) == {
        "Iterations", "Algorithm", "Held-out attempts per task", "Held-out tasks (hash)", "Time", "Tokens sampled",
    }  # fmt: skip


def test_a_folder_on_a_disk_is_named_by_its_last_part(run):
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace('"tiny"', '"/home/somebody/models/mine"'))
    assert top(run)["model"] == "mine"


def test_warnings_are_those_of_training(tmp_path):
    found = top(odd_run(tmp_path / "odd"))["warnings"]
    texts = " ".join(each["text"] for each in found)
    assert {each["iteration"] for each in found} == {1}
    assert "the sampler's log-probs differ from the trainer's by 0.5" in texts
    assert "of the episodes failed by fault of the infrastructure" in texts
    assert "2 of 8 attempts of the evaluation failed" in texts
    assert not any(each["text"].startswith("iteration") for each in found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"turns": [{"turn": 0, "carry_max": 20.0}]}, "M / A reached 20"),
        ({"turns": [{"turn": 0, "grad_norm": None}]}, "a gradient norm was not finite"),
        ({"entropy": 0.001, "success": 0.2}, "entropy is 0.001"),
        ({"success": None, "sampler_gap": 1.0}, None),
        ({"turns": "x", "algorithm": 3, "entropy": "y"}, None),
    ],
)
def test_what_warns(run, change, text):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, **change} if line["kind"] == "iteration" else line for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [each["text"] for each in top(run)["warnings"]]
    if text is None:
        assert not any("log-probs" in each or "entropy" in each for each in found)
    else:
        assert any(each.startswith(text) for each in found)


def test_nothing_but_metrics_is_a_report_too(run):
    for name in ("recipe.toml", "facts.json", "summary.json"):
        (run / name).unlink()
    for name in ("policy", "trajectories", "evaluations"):
        shutil.rmtree(run / name)
    found = top(run)
    assert found["model"] == "an unknown model"
    assert found["verdict"] == "unknown"
    assert [curve["key"] for curve in found["curves"]][:2] == ["success", "reward"]
    assert len(found["missing"]) >= 6


def test_an_empty_run_is_a_report_too(run):
    for name in ("policy", "trajectories", "evaluations"):
        shutil.rmtree(run / name)
    for name in ("recipe.toml", "facts.json", "summary.json", "metrics.jsonl"):
        (run / name).write_text("")
    found = top(run)
    assert (found["curves"], found["turn_maps"], found["warnings"], found["scores"]) == ([], [], [], [])


def test_cut_files_everywhere_are_a_report_too(run):
    for path in [path for path in run.rglob("*") if path.is_file()]:
        cut(path)
    assert len(top(run)["missing"]) > 3
