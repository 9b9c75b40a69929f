"""A stored run of run format 1 can be reported and evaluated, but not resumed.

`stored_run_v1` was written by seeupo 0.1.0 before the format changed: two iterations of a very small model on pocket.
"""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from report.decoding import decoded, decoded_page
from seeupo import resume
from seeupo.cli import main
from seeupo.errors import RunError
from seeupo.evaluation.results import Evaluation
from seeupo.runs.reader import read_run
from seeupo.runs.trajectory_files import read_trajectories

STORED = Path(__file__).with_name("stored_run_v1")


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copytree(STORED, tmp_path / "run"))


def seeupo(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_reader_returns_current_names(run):
    stored = read_run(run)
    assert stored.missing == []
    assert stored.ended
    assert "custom_environment" in stored.env_info
    record = stored.records["iteration"][-1]
    assert "truncated_responses" in record
    assert [turn["live_turns"] for turn in record["turns"]] == [6.0, 6.0, 8.0]
    assert not {"cut_responses", "live_samples", "used_samples"} & {*record, *record["turns"][0]}


def test_trajectories_are_upgraded(run):
    members = list(read_trajectories(run / "trajectories" / "00002.jsonl.gz"))
    assert [each.score for each in members].count(0.5) == 3
    for each in members:
        assert each.opening
        assert each.failure is None
        assert each.score == each.reward
        assert len(each.turn_texts) == len(each.turns) == len(each.credit.turns)
        assert "cut_responses" not in each.timings


def test_evaluations_are_upgraded(run):
    evaluation = Evaluation.read(run / "evaluations" / "00002.json")
    assert (evaluation.plan.attempts, evaluation.plan.k, len(evaluation.results)) == (2, 2, 8)
    stored = json.loads((run / "evaluations" / "00002.json").read_text())
    assert evaluation.summary()["truncated_responses"] == stored["summary"]["cut_responses"] == 1


def test_report_shows_metrics_trajectories_and_credit(run, tmp_path):
    done = seeupo("report", run, "--out", tmp_path / "report.html")
    assert done.exit_code == 0, done.output
    page = decoded_page(tmp_path / "report.html")
    (overview,) = page.runs
    assert overview["missing"] == []
    assert overview["verdict"] == "no_change"
    assert (overview["trajectories"]["total"], overview["trajectories"]["kept"]) == (32, 32)
    live = next(each for each in overview["turn_maps"] if each["key"] == "live_turns")
    assert [cell[:3] for cell in live["cells"]] == [[2, 3, 6.0], [2, 2, 6.0], [2, 1, 8.0]]
    trained = [body for row, body in page.rows() if (row["phase"], row["iteration"]) == (0, 2)]
    assert [body["turns"][0]["credit"]["position"] for body in trained] == [len(body["turns"]) for body in trained]
    assert all(body["opening"] and body["turns"][0]["observation"] for body in trained)


def test_alarms_see_truncated_responses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, "cut_responses": 8} if line["kind"] == "iteration" else line for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = len(decoded(STORED).runs[0]["warnings"])
    assert len(decoded(run).runs[0]["warnings"]) == before + 1


def test_eval_runs_the_stored_policy(run, tmp_path):
    done = seeupo("eval", run, "--tasks", 2, "--attempts", 1, "-k", 1, "--out", tmp_path / "result.json")
    assert done.exit_code == 0, done.output
    evaluation = Evaluation.read(tmp_path / "result.json")
    assert evaluation.plan.environment == "pocket"
    assert len(evaluation.results) == 2
    assert all(result.score is not None for result in evaluation.results.values())


def test_resume_refuses_the_run_in_one_sentence(run):
    with pytest.raises(RunError, match="cannot be resumed"):
        resume(run)
    done = seeupo("train", "--resume", run, "--run.iterations", 4)
    assert done.exit_code == 1
    assert "cannot be resumed" in done.output
    assert "Traceback" not in done.output
