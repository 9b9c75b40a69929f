import json

import pytest
from click.testing import CliRunner

from seeupo.cli import main
from seeupo.errors import EvaluationError
from seeupo.evaluation.results import (
    AttemptResult,
    Evaluation,
    EvaluationPlan,
    compare,
    panel_of,
    verdict_of,
)
from seeupo.rollout.groups import group_attempts
from seeupo.types import Task

TASKS = [Task(f"t{n}", "test", kind="odd" if n % 2 else "even") for n in range(6)]


def plan(**changes) -> EvaluationPlan:
    values = {
        "policy": "p", "environment": "e", "split": "test", "options": {}, "attempts": 4, "k": 4, "seed": 0,
        "max_turns": 5, "sampling": {"temperature": 1.0}, "panel": panel_of(TASKS),
    }  # fmt: skip
    return EvaluationPlan(**{**values, **changes})


def result(task: str, attempt: int, score: float | None, **changes) -> AttemptResult:
    kind = "odd" if int(task[1:]) % 2 else "even"
    stop = "failure" if score is None else "goal" if score == 1 else "environment"
    return AttemptResult(
        **{"task": task, "kind": kind, "attempt": attempt, "score": score, "stop": stop, "turns": 2, **changes}
    )


def evaluation(successes, **changes) -> Evaluation:
    """Task n is solved in the first successes[n] of 4 attempts."""
    made = Evaluation(plan(**changes), {})
    for number, count in enumerate(successes):
        for attempt in range(4):
            made.add(result(f"t{number}", attempt, float(attempt < count)))
    return made


def test_the_summary_counts_scores_failures_and_tokens():
    made = evaluation([4, 2, 0, 1, 0, 0])
    made.add(result("t5", 3, None, failure="lost"))
    made.add(result("t0", 0, 1.0, truncated_responses=2, prompt_tokens=10, action_tokens=4))
    summary = made.summary()
    # t5 has only three scores and is left out of avg@4 and pass@4.
    assert summary["tasks"] == 5
    assert summary["tasks_without_k_scores"] == 1
    assert summary["avg@4"]["value"] == pytest.approx((1 + 0.5 + 0 + 0.25 + 0) / 5)
    assert summary["pass@4"]["value"] == pytest.approx(3 / 5)
    assert summary["avg@4"]["low"] < summary["avg@4"]["value"] < summary["avg@4"]["high"]
    assert summary["kinds"]["even"]["avg@4"]["value"] == pytest.approx(1 / 3)
    assert summary["kinds"]["odd"]["tasks"] == 2
    assert (summary["failures"], summary["truncated_responses"]) == (1, 2)
    assert summary["stops"] == {"environment": 16, "failure": 1, "goal": 7}
    assert (summary["mean_prompt_tokens"], summary["mean_action_tokens"]) == (10, 4)


def test_only_missing_and_failed_attempts_are_run_again():
    made = evaluation([4, 2])
    made.add(result("t1", 2, None))
    wanted = group_attempts(TASKS[:3], 4, seed=0)
    assert [(each.task.id, each.index) for each in made.missing(wanted)] == [("t1", 2), *(("t2", n) for n in range(4))]


def test_seeds_depend_on_the_attempt_alone():
    few, many = group_attempts(TASKS[:2], 2, seed=5), group_attempts(TASKS, 4, seed=5)
    by_key = {(each.task.id, each.index): each.seed for each in many}
    assert all(by_key[each.task.id, each.index] == each.seed for each in few)
    assert len(set(by_key.values())) == 24
    assert group_attempts(TASKS, 4, seed=6)[0].seed != many[0].seed


def test_a_result_file_is_read_back_and_names_its_versions(tmp_path):
    made = evaluation([4, 0, 1])
    made.write(tmp_path / "r.json")
    again = Evaluation.read(tmp_path / "r.json")
    assert (again.plan, again.results) == (made.plan, made.results)
    assert set(json.loads((tmp_path / "r.json").read_text())["versions"]) == {"seeupo", "python", "torch"}
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(EvaluationError, match="not a readable evaluation"):
        Evaluation.read(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("episodes", "task", 5),
        ("episodes", "kind", None),
        ("episodes", "attempt", "0"),
        ("episodes", "score", "1"),
        ("episodes", "score", 2),
        ("episodes", "score", float("nan")),
        ("episodes", "turns", 10**400),
        ("episodes", "turns", True),
        ("episodes", "stop", ["goal"]),
        ("plan", "options", 5),
        ("plan", "k", "4"),
        ("plan", "panel", None),
    ],
)
def test_result_files_with_values_of_wrong_types_are_refused(tmp_path, part, field, value):
    evaluation([4, 0]).write(tmp_path / "a.json")
    record = json.loads((tmp_path / "a.json").read_text())
    (record["plan"] if part == "plan" else record["episodes"][0])[field] = value
    (tmp_path / "a.json").write_text(json.dumps(record))
    with pytest.raises(EvaluationError, match="not a readable evaluation result"):
        Evaluation.read(tmp_path / "a.json")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": "seeupo-evaluation", "version": 2, "episodes": [5]}', "[]"]
)
def test_other_json_is_not_an_evaluation_result(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(EvaluationError, match="not a readable evaluation result"):
        Evaluation.read(tmp_path / "a.json")


def test_the_verdict_follows_the_interval_of_the_difference():
    def difference(low, high):
        return {"tasks": 5, "avg@4": {"value": (low + high) / 2, "low": low, "high": high}}

    assert verdict_of(difference(0.1, 0.2), 4) == "improved"
    assert verdict_of(difference(-0.2, -0.1), 4) == "regressed"
    assert verdict_of(difference(-0.1, 0.1), 4) == "no_change"
    assert verdict_of(None, 4) == "inconclusive"


def test_resuming_with_another_plan_is_refused():
    made = evaluation([1])
    made.check_continues(plan(attempts=8))
    with pytest.raises(EvaluationError, match=r"seed was 0 and is now 1"):
        made.check_continues(plan(seed=1))
    with pytest.raises(EvaluationError, match="k = 5 with 4 attempts"):
        plan(k=5)


def test_results_are_compared_task_by_task():
    one, other = evaluation([4, 2, 0, 1, 0, 0]), evaluation([4, 4, 2, 1, 0, 1])
    found = compare(one, other)
    assert found["tasks"] == 6
    assert found["avg@4"]["value"] == pytest.approx((0 + 0.5 + 0.5 + 0 + 0 + 0.25) / 6)
    assert found["pass@4"]["value"] == pytest.approx(2 / 6)
    assert found["avg@4"]["low"] < found["avg@4"]["value"] < found["avg@4"]["high"]
    assert compare(other, one)["avg@4"]["value"] == -found["avg@4"]["value"]
    with pytest.raises(EvaluationError, match="only the same panel can be compared"):
        compare(one, evaluation([1], panel="other"))


def run(*arguments):
    return CliRunner().invoke(main, ["eval", *arguments], env={"COLUMNS": "150"})


def test_the_command_evaluates_resumes_and_compares(tmp_path):
    results = {}
    for policy in ("expert", "random", "tiny"):
        out = tmp_path / f"{policy}.json"
        done = run(policy, "--env", "pocket", "--tasks", "10", "--max-tokens", "6", "--plain", "--out", str(out))
        assert done.exit_code == 0, done.output
        assert "avg@4" in done.output
        results[policy] = json.loads(out.read_text())
    assert results["expert"]["summary"]["avg@4"]["value"] == 1.0
    assert results["random"]["summary"]["avg@4"]["value"] < 0.1
    assert results["tiny"]["summary"]["mean_action_tokens"] > 0
    assert results["tiny"]["plan"]["sampling"]["temperature"] == 1.0

    # As after an interrupt: half of the episodes are not there, one has failed.
    out = tmp_path / "tiny.json"
    record = results["tiny"]
    kept = record["episodes"][:20]
    kept[3] |= {"score": None, "stop": "failure"}
    out.write_text(json.dumps({**record, "episodes": kept}))
    arguments = ["tiny", "--env", "pocket", "--tasks", "10", "--max-tokens", "6", "--plain", "--out", str(out)]
    assert "already exists" in run(*arguments).output
    done = run(*arguments, "--resume", "--json")
    assert done.exit_code == 0, done.output
    again = json.loads(out.read_text())
    assert [(e["task"], e["attempt"]) for e in again["episodes"]] == [
        (e["task"], e["attempt"]) for e in record["episodes"]
    ]
    assert again["summary"]["failures"] == 0

    compared = run("--compare", str(tmp_path / "random.json"), str(tmp_path / "expert.json"), "--json")
    assert json.loads(compared.output)["avg@4"]["value"] > 0.9
    for pair, verdict in (
        (("random", "expert"), "Improved: the 95% interval of the difference in avg@4 is above 0"),
        (("expert", "random"), "Regressed: the 95% interval of the difference in avg@4 is below 0"),
        (("expert", "expert"), "No significant change: the 95% interval of the difference in avg@4 contains 0"),
    ):
        compared = run("--compare", *(str(tmp_path / f"{each}.json") for each in pair))
        assert compared.output.startswith(f"{verdict}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["expert"], "no environment"),
        (["--env", "pocket"], "expected either a policy, or --endpoint"),
        (["--env", "pocket", "--endpoint", "http://127.0.0.1:9/v1"], "--endpoint needs the name of a model"),
        (["--env", "pocket", "--endpoint", "nowhere", "--model", "m"], "'nowhere'"),
        (["nothing-like-it", "--env", "pocket"], "nothing-like-it"),
        (["expert", "--env", "pocket", "-k", "5"], "k = 5 with 4 attempts"),
        (["expert", "--env", "pocket", "--split", "none"], "pocket has no split 'none'"),
        (["--compare", "a.json", "b.json"], "a.json is not a readable evaluation"),
    ],
)
def test_user_errors_print_one_message(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 1
    assert message in done.output.replace("\n", " ")
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []
