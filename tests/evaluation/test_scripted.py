import json
from dataclasses import replace
from itertools import pairwise

import pytest
from click.testing import CliRunner

from envs.counting import CountingEnv, CountingFactory
from seeupo.callbacks import Callback
from seeupo.cli import main
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError
from seeupo.evaluation.scripted import (
    check_environment,
    expert_texts,
    run_rollouts,
    scripted_rollout,
    text_rollout,
    vocabulary_problem,
)
from seeupo.types import Attempt, Task


def check(factory, **options):
    with EnvPool(factory) as pool:
        return list(check_environment(pool, pool.splits, **options))


def test_expert_solves_all_tasks_and_no_op_policy_none():
    found = check(CountingFactory())
    assert [(each.split, each.policy, each.solved, len(each.episodes)) for each in found] == [
        ("easy", "expert", 5, 5),
        ("easy", "no-op", 0, 5),
        ("odd", "expert", 2, 2),
        ("odd", "no-op", 0, 2),
    ]
    assert all(each.problem is None for each in found)
    assert [episode.task for episode in found[0].episodes] == [f"easy-{n}" for n in range(1, 6)]
    assert [episode.turns for episode in found[0].episodes] == [2, 3, 4, 5, 6]
    assert [episode.stop for episode in found[0].episodes] == ["goal"] * 5
    assert found[0].to_json()["mean_turns"] == 4


def test_failures_are_counted_and_not_scored():
    expert = check(CountingFactory(broken_task="easy-3"))[0]
    assert (expert.solved, len(expert.failures)) == (4, 1)
    assert "RuntimeError: broken" in expert.failures[0]
    assert expert.episodes[2].score is None
    assert "1 of 5 episodes of the expert failed" in expert.problem
    assert expert.to_json()["mean_score"] == 1.0


def test_an_environment_that_fails_its_first_task_raises():
    class Broken(CountingFactory):
        def make(self):
            raise OSError("no database")

    with pytest.raises(EnvError, match="no database"):
        check(Broken())


def test_progress_is_reported_for_each_row():
    class Finished(Callback):
        def __init__(self):
            self.rows = {}

        def on_phase(self, name, total=None):
            self.name, self.total = name, total

        def on_progress(self, done, text=""):
            self.rows[self.name] = done, self.total

    finished = Finished()
    check(CountingFactory(), callback=finished)
    assert finished.rows == {"easy, expert": (5, 5), "easy, no-op": (5, 5), "odd, expert": (2, 2), "odd, no-op": (2, 2)}


def test_missing_expert_is_skipped():
    assert [each.policy for each in check(CountingFactory(help_wanted=False), tasks=1)] == ["no-op"] * 2


class Endless(CountingFactory):
    """Many tasks whose episodes do not end for a policy that does nothing, noisy experts and a vocabulary."""

    splits = ("easy",)
    words = ("say", "up", "times,", "then", "stop", *map(str, range(10)))

    def tasks(self, split):
        return [Task(f"{split}-{n:03d}", split, payload={"wanted": n % 4}) for n in range(250)]

    def make(self):
        env = CountingEnv()
        step = env.step
        env.step = lambda text: replace(step(text), truncated=False)
        return env

    def noisy_expert(self, task, *, seed, rates):
        expert = self.expert(task)
        return lambda result: "stop" if task.payload["wanted"] == 3 else expert(result)

    def vocabulary(self):
        return self.words


def test_a_large_environment_is_sampled_and_its_endless_episodes_are_stopped():
    expert, noisy, no_op = check(Endless())
    for result in (expert, noisy, no_op):
        assert (len(result.episodes), result.tasks) == (100, 250)
        tasks = [int(episode.task[-3:]) for episode in result.episodes]
        assert {later - earlier for earlier, later in pairwise(tasks)} == {2, 3}
    assert (expert.policy, noisy.policy, no_op.policy) == ("expert", "noisy expert", "no-op")
    assert expert.solved == 100
    assert noisy.solved == sum(int(episode.task[-3:]) % 4 != 3 for episode in noisy.episodes)
    assert noisy.problem is None
    assert {episode.turns for episode in no_op.episodes} == {20}


def test_failures_of_noisy_experts_are_reported():
    class Broken(Endless):
        def noisy_expert(self, task, *, seed, rates):
            return lambda result: "break it"

    assert "4 of 4 episodes of the noisy expert failed" in check(Broken(), tasks=4)[1].problem


def test_words_that_the_vocabulary_lacks_are_named():
    factory = Endless()
    with EnvPool(factory) as pool:
        tasks = pool.tasks("easy")
        assert vocabulary_problem(pool, factory.words, tasks) is None
        assert vocabulary_problem(pool, (), tasks) is None
        problem = vocabulary_problem(pool, set(factory.words) - {"up", "2"}, tasks)
    assert "lacks 2 words" in problem
    assert "'up', '2'" in problem


def test_more_rollouts_than_the_concurrency_all_finish():
    with EnvPool(CountingFactory()) as pool:
        attempts = [Attempt(str(n), "g", task, task.seed) for n, task in enumerate(pool.tasks("easy") * 20)]
        rollouts = [scripted_rollout(pool, attempt, "expert") for attempt in attempts]
        found = list(run_rollouts(rollouts, concurrency=3))
    assert len(found) == 100
    assert all(each.score == 1.0 for each in found)


def test_rollout_is_stopped_and_scored_after_the_maximum_number_of_turns():
    with EnvPool(CountingFactory()) as pool:
        task = pool.tasks("easy")[1]
        attempt = Attempt("a", "g", task, 0, index=3)
        for max_turns, expected in [(2, (1.0, "turn_limit", 2)), (1, (0.0, "turn_limit", 1)), (9, (1.0, "goal", 3))]:
            rollout = text_rollout(pool, attempt, pool.expert(task).submit, max_turns=max_turns)
            (found,) = run_rollouts([rollout])
            assert (found.score, found.stop, found.turns) == expected
            assert found.key == (task.id, 3)


def test_check_command_prints_json_and_a_table():
    done = CliRunner().invoke(main, ["envs", "check", "pocket", "--tasks", "5", "--split", "test", "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.output)
    assert printed["passed"] is True
    assert [(each["policy"], each["solved"], each["episodes"]) for each in printed["results"]] == [
        ("expert", 5, 5),
        ("noisy expert", printed["results"][1]["solved"], 5),
        ("no-op", 0, 5),
    ]
    assert {each["tasks"] for each in printed["results"]} == {128}
    assert printed["vocabulary"] > 50
    table = CliRunner().invoke(main, ["envs", "check", "pocket", "--tasks", "5"]).output
    assert "5/5" in table
    assert "test: 5 of 128 tasks, evenly spread; --tasks 128 checks all" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "poket"], "did you mean 'pocket'?"),
        (["check", "pocket", "--split", "tset"], "did you mean 'test'?"),
        (["check", "pocket", "-o", "turn=3"], "turn"),
        (["check", "pocket", "-o", "turns"], "'turns'"),
        (["install", "nothing"], "'nothing'"),
        (["play", "pocket", "--task", "nothing"], "'nothing'"),
    ],
)
def test_user_errors_print_no_traceback(arguments, message):
    done = CliRunner().invoke(main, ["envs", *arguments])
    assert done.exit_code != 0
    assert message in done.output
    assert "Traceback" not in done.output


def test_list_command_prints_the_environments():
    output = CliRunner().invoke(main, ["envs", "list"], env={"COLUMNS": "200"}).output
    for name in ("pocket", "bfcl"):
        assert name in output


def test_texts_of_experts_are_in_the_order_of_tasks():
    with EnvPool(CountingFactory()) as pool:
        texts = expert_texts(pool, pool.first_tasks("easy", None)[:2])
    assert texts == [
        *("say up 1 times, then stop", "1", "up", "stop"),
        *("say up 2 times, then stop", "1", "2", "up", "up", "stop"),
    ]


@pytest.mark.parametrize(
    ("factory", "message"),
    [(CountingFactory(broken_task="easy-3"), "easy-3.*broken"), (CountingFactory(help_wanted=False), "no expert")],
)
def test_without_episodes_of_an_expert_there_are_no_texts(factory, message):
    with EnvPool(factory) as pool, pytest.raises(EnvError, match=message):
        expert_texts(pool, pool.first_tasks("easy", None))
