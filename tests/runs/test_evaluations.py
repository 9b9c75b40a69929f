import json

import pytest
from click.testing import CliRunner

from seeupo.cli import main
from seeupo.errors import EvaluationError
from seeupo.runs.evaluations import Episode, Evaluation, Plan, attempts, compare, panel_of
from seeupo.types import Task

TASKS = [Task(f"t{n}", "test", kind="odd" if n % 2 else "even") for n in range(6)]


def plan(**changes) -> Plan:
    values = {
        "policy": "p", "environment": "e", "split": "test", "options": {}, "samples": 4, "k": 4, "seed": 0,
        "max_turns": 5, "sampling": {"temperature": 1.0}, "panel": panel_of(TASKS),
    }  # fmt: skip
    return Plan(**{**values, **changes})


def episode(task: str, sample: int, score: float | None, **changes) -> Episode:
    kind = "odd" if int(task[1:]) % 2 else "even"
    stop = "failure" if score is None else "goal" if score == 1 else "environment"
    return Episode(
        **{"task": task, "kind": kind, "sample": sample, "score": score, "stop": stop, "turns": 2, **changes}
    )


def evaluation(successes, **changes) -> Evaluation:
    """Task n is solved in the first successes[n] of 4 attempts."""
    made = Evaluation(plan(**changes), {})
    for number, count in enumerate(successes):
        for sample in range(4):
            made.add(episode(f"t{number}", sample, float(sample < count)))
    return made


def test_the_summary_counts_what_happened():
    made = evaluation([4, 2, 0, 1, 0, 0])
    made.add(episode("t5", 3, None, failure="lost"))
    made.add(episode("t0", 0, 1.0, truncated_responses=2, prompt_tokens=10, action_tokens=4))
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


def test_only_what_is_missing_or_failed_is_played_again():
    made = evaluation([4, 2])
    made.add(episode("t1", 2, None))
    wanted = attempts(TASKS[:3], 4, seed=0)
    assert [(each.task.id, each.sample) for each in made.missing(wanted)] == [("t1", 2), *(("t2", n) for n in range(4))]


def test_seeds_depend_on_the_attempt_alone():
    few, many = attempts(TASKS[:2], 2, seed=5), attempts(TASKS, 4, seed=5)
    by_key = {(each.task.id, each.sample): each.seed for each in many}
    assert all(by_key[each.task.id, each.sample] == each.seed for each in few)
    assert len(set(by_key.values())) == 24
    assert attempts(TASKS, 4, seed=6)[0].seed != many[0].seed


def test_a_result_file_comes_back_and_names_its_versions(tmp_path):
    made = evaluation([4, 0, 1])
    made.write(tmp_path / "r.json")
    again = Evaluation.read(tmp_path / "r.json")
    assert (again.plan, again.episodes) == (made.plan, made.episodes)
    assert set(json.loads((tmp_path / "r.json").read_text())["versions"]) == {"seeupo", "python", "torch"}
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(EvaluationError, match="is no evaluation that this program can read"):
        Evaluation.read(tmp_path / "r.json")


def test_going_on_with_another_plan_is_refused():
    made = evaluation([1])
    made.check_continues(plan(samples=8))
    with pytest.raises(EvaluationError, match=r"seed was 0 and is now 1; go on as it was"):
        made.check_continues(plan(seed=1))
    with pytest.raises(EvaluationError, match="k is 5 with 4 samples"):
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
    assert "is there already; go on with it by --resume" in run(*arguments).output
    done = run(*arguments, "--resume", "--json")
    assert done.exit_code == 0, done.output
    again = json.loads(out.read_text())
    assert [(e["task"], e["sample"]) for e in again["episodes"]] == [
        (e["task"], e["sample"]) for e in record["episodes"]
    ]
    assert again["summary"]["failures"] == 0

    compared = run("--compare", str(tmp_path / "random.json"), str(tmp_path / "expert.json"), "--json")
    assert json.loads(compared.output)["avg@4"]["value"] > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["expert"], "which environment? name it with --env"),
        (["--env", "pocket"], "name a policy, or an endpoint"),
        (["--env", "pocket", "--endpoint", "http://127.0.0.1:9/v1"], "an endpoint needs the model's name"),
        (["--env", "pocket", "--endpoint", "nowhere", "--model", "m"], "'nowhere' is no address"),
        (["nothing-like-it", "--env", "pocket"], "there is no model 'nothing-like-it'"),
        (["expert", "--env", "pocket", "-k", "5"], "k is 5 with 4 samples"),
        (["expert", "--env", "pocket", "--split", "none"], "pocket has no split 'none'"),
        (["--compare", "a.json", "b.json"], "a.json is no evaluation"),
    ],
)
def test_mistakes_get_one_clear_error(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 1
    assert message in done.output.replace("\n", " ")
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []
