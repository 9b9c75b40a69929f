import json

import pytest
from click.testing import CliRunner

from envs.counting import CountingFactory
from seeupo.cli import main
from seeupo.envs.pool.pool import EnvPool
from seeupo.rollout.scripted import drive, play


def outcomes(factory, **options):
    with EnvPool(factory) as pool:
        return list(check(pool, pool.splits, ("expert", "do-nothing"), **options))


def test_experts_solve_all_and_doing_nothing_solves_nothing():
    found = outcomes(CountingFactory())
    assert [(each.split, each.player, each.solved, len(each.episodes)) for each in found] == [
        ("easy", "expert", 5, 5),
        ("easy", "do-nothing", 0, 5),
        ("odd", "expert", 2, 2),
        ("odd", "do-nothing", 0, 2),
    ]
    assert all(each.as_it_should_be for each in found)
    assert [played.task.id for played in found[0].episodes] == [f"easy-{n}" for n in range(1, 6)]
    assert [played.turns for played in found[0].episodes] == [2, 3, 4, 5, 6]
    assert found[0].to_json()["mean_turns"] == 4


def test_a_failure_is_counted_and_not_scored():
    expert = outcomes(CountingFactory(broken_task="easy-3"))[0]
    assert (expert.solved, len(expert.failures)) == (4, 1)
    assert "RuntimeError: broken" in expert.failures[0]
    assert expert.episodes[2].score is None
    assert not expert.as_it_should_be
    assert expert.to_json()["mean_score"] == 1.0


def test_an_expert_that_nobody_has_written_is_left_out():
    assert [each.player for each in outcomes(CountingFactory(help_wanted=False), tasks=1)] == ["do-nothing"] * 2


def test_more_games_than_may_run_at_once_all_end():
    with EnvPool(CountingFactory()) as pool:
        tasks = pool.tasks("easy") * 20
        played = list(drive([play(pool, task, "expert") for task in tasks], in_flight=3))
    assert len(played) == 100
    assert all(each.score == 1.0 for each in played)


def test_the_command_says_how_it_went():
    done = CliRunner().invoke(main, ["envs", "check", "pocket", "--tasks", "5", "--split", "test", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["good"] is True
    assert [(each["player"], each["solved"], each["episodes"]) for each in facts["results"]] == [
        ("expert", 5, 5),
        ("do-nothing", 0, 5),
    ]
    table = CliRunner().invoke(main, ["envs", "check", "pocket", "--tasks", "5"]).output
    assert "5/5" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "poket"], "there is no environment 'poket'; did you mean 'pocket'?"),
        (["check", "pocket", "--split", "tset"], "pocket has no split 'tset'; did you mean 'test'?"),
        (["check", "pocket", "-o", "turn=3"], "turn"),
        (["check", "pocket", "-o", "turns"], "'turns' should be key=value"),
        (["install", "nothing"], "there is no environment 'nothing'"),
        (["play", "pocket", "--task", "nothing"], "pocket has no task 'nothing'"),
    ],
)
def test_mistakes_get_one_clear_error(arguments, message):
    done = CliRunner().invoke(main, ["envs", *arguments])
    assert done.exit_code != 0
    assert message in done.output
    assert "Traceback" not in done.output


def test_the_list_names_what_there_is():
    output = CliRunner().invoke(main, ["envs", "list"], env={"COLUMNS": "200"}).output
    for name in ("pocket", "bfcl"):
        assert name in output
