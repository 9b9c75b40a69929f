from collections import Counter
from dataclasses import replace

import pytest

from seeupo.config.schema import CollectSettings
from seeupo.errors import TrainingError
from seeupo.rollout.collector import Collector, with_reward
from seeupo.types import Failure, FailureKind, StopReason, Task, Trajectory, Turn

TASKS = [Task(f"task-{number}", "train") for number in range(10)]
VERSION = 4


class ScriptedRunner:
    """A runner whose scores are decided by the test, None for a failure; `calls` records the attempts."""

    def __init__(self, score, version=lambda attempt: VERSION):
        self.score, self.version, self.calls = score, version, []
        self.turn = lambda attempt: Turn(attempt.id, 0, (1,), (2,), policy_version=self.version(attempt))
        self.work = Counter(passes=2, tokens=5)

    def run(self, attempts):
        attempts = list(attempts)
        self.calls.append(attempts)
        for attempt in reversed(attempts):  # the order in which episodes finish must not matter
            score = self.score(attempt, len(self.calls) - 1)
            failed = score is None
            yield Trajectory(
                attempt.id,
                attempt.group,
                attempt.task.id,
                (self.turn(attempt),),
                reward=0.0 if failed else score,
                score=score,
                stop=StopReason.FAILURE if failed else StopReason.ENVIRONMENT,
                failure=Failure(FailureKind.RAISED, "the disk is full") if failed else None,
            )


def make_collector(score, *, version=lambda attempt: VERSION, **settings):
    runner = ScriptedRunner(score, version)
    return Collector(runner, TASKS, CollectSettings(tasks=4, group_size=3, **settings), seed=7), runner


def collect(collector, iteration):
    return collector.collect(iteration, policy_version=VERSION)


def test_groups_are_complete_and_in_a_fixed_order():
    collector, runner = make_collector(lambda attempt, _: float(attempt.index == 0))
    found = collect(collector, 1)
    assert [trajectory.id for trajectory in found.trajectories] == [attempt.id for attempt in runner.calls[0]]
    assert [len(group) for group in found.groups.values()] == [3] * 4
    assert all(len({each.task for each in group}) == 1 for group in found.groups.values())
    assert len({attempt.seed for attempt in runner.calls[0]}) == 12


def test_every_task_is_used_once_per_pass_and_the_position_can_be_restored():
    one, first = make_collector(lambda *_: 0.0)
    for iteration in (1, 2, 3):
        collect(one, iteration)
    seen = [attempt.task.id for attempts in first.calls for attempt in attempts][::3]
    assert len(set(seen[:10])) == 10
    other, second = make_collector(lambda *_: 0.0)
    other.drawn = 8
    collect(other, 3)
    assert second.calls[0] == first.calls[2]


def test_group_with_an_infrastructure_failure_is_resampled_with_other_seeds():
    def score(attempt, round_):
        return None if attempt.group.endswith("-002") and round_ == 0 and attempt.index == 1 else 1.0

    collector, runner = make_collector(score)
    found = collect(collector, 5)
    assert [attempt.group for attempt in runner.calls[1]] == ["00005-002"] * 3
    tasks = [{attempt.task.id for attempt in attempts if attempt.group == "00005-002"} for attempts in runner.calls]
    assert tasks[0] == tasks[1]
    assert not {a.seed for a in runner.calls[1]} & {a.seed for a in runner.calls[0]}
    assert (found.resampled, found.dropped, found.failed_episodes, len(found.groups)) == (1, 0, 1, 4)


def test_group_that_fails_in_every_round_is_dropped_and_counted():
    collector, runner = make_collector(lambda a, _: None if a.group.endswith("-000") else 0.0, failed_rounds=2)
    found = collect(collector, 1)
    assert len(runner.calls) == 3
    assert (found.resampled, found.dropped, found.failed_episodes) == (2, 1, 9)
    assert len(found.trajectories) == 9


def test_environment_that_always_fails_raises_with_its_message():
    collector, _ = make_collector(lambda *_: None, failed_rounds=1)
    with pytest.raises(TrainingError, match=r"iteration 3 .* 2 rounds.*the disk is full"):
        collect(collector, 3)


def test_groups_with_equal_rewards_are_replaced_by_other_tasks_up_to_a_limit():
    def score(attempt, round_):
        return float(attempt.index == 0) if attempt.group.startswith("00001-003") else 1.0

    collector, runner = make_collector(score, equal_rounds=2)
    found = collect(collector, 1)
    assert [len(attempts) for attempts in runner.calls] == [12, 9, 9]
    assert (found.replaced, len(found.groups)) == (6, 4)
    assert collector.drawn == 10
    assert len({trajectory.id for trajectory in found.trajectories}) == 12


def test_groups_with_equal_rewards_are_kept_by_default():
    collector, runner = make_collector(lambda *_: 1.0)
    assert collect(collector, 1).replaced == 0
    assert len(runner.calls) == 1


@pytest.mark.parametrize("version", [None, VERSION - 1, VERSION + 1])
def test_turns_of_another_weight_version_are_refused(version):
    collector, runner = make_collector(lambda *_: 1.0, version=lambda a: version if a.index == 2 else VERSION)
    with pytest.raises(RuntimeError, match=rf"version {version} of the weights; expected version {VERSION}"):
        collect(collector, 1)
    runner.version = lambda attempt: VERSION
    assert len(collect(collector, 2).trajectories) == 12


def trajectory(score, *actions):
    turns = tuple(Turn("a", index, (1,), action) for index, action in enumerate(actions))
    return Trajectory("a", "g", "t", turns, score, score=score)


STEPS = replace(
    trajectory(1.0, (2,), (3,), (4,)),
    turns=tuple(Turn("a", t, (1,), (2,), reward=reward) for t, reward in enumerate((0.25, 0.0, 0.5))),
)


@pytest.mark.parametrize(
    ("settings", "reward", "outcome"),
    [
        ({"reward": "score"}, 1.0, None),
        ({"reward": "score_and_steps"}, 1.0 + 0.25 + 0.5, 1.0),
        ({"reward": "score", "discount": 0.5}, 0.5**2, None),
        ({"reward": "score_and_steps", "discount": 0.5}, 0.5**2 * 1.0 + 0.25 + 0.5**2 * 0.5, 1.0),
    ],
)
def test_step_rewards_are_added_and_discounted_by_turn(settings, reward, outcome):
    found = with_reward(STEPS, CollectSettings(**settings))
    assert (found.reward, found.outcome, found.score) == (reward, outcome, 1.0)


def test_reward_function_replaces_the_score_as_the_reward():
    settings = CollectSettings(reward="mine.py:reward", discount=0.5)
    trained = with_reward(STEPS, settings, lambda trajectory: 10.0 * len(trajectory.turns))
    assert (trained.reward, trained.outcome, trained.score) == (0.5**2 * 30.0, None, 1.0)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda trajectory: float("nan"), "returned nan for a; expected a number"),
        (lambda trajectory: "1", "returned '1' for a; expected a number"),
        (lambda trajectory: trajectory.missing, "failed on a: AttributeError"),
    ],
)
def test_reward_function_that_fails_is_named(function, problem):
    with pytest.raises(TrainingError, match=f"collect.reward = 'mine.py:reward' {problem}"):
        with_reward(STEPS, CollectSettings(reward="mine.py:reward"), function)


def test_failed_trajectories_have_no_reward():
    failed = replace(STEPS, reward=0.0, score=None, failure=Failure(FailureKind.RAISED, "lost"))
    assert with_reward(failed, CollectSettings(reward="score_and_steps")) == failed
    assert with_reward(failed, CollectSettings(reward="mine.py:reward"), lambda trajectory: 1.0) == failed


def test_groups_that_differ_in_step_rewards_only_are_not_replaced():
    collector, _ = make_collector(lambda *_: 0.0, equal_rounds=1, reward="score_and_steps")
    turn = Turn("x", 0, (1,), (2,), policy_version=VERSION)
    collector.runner.turn = lambda attempt: replace(turn, trajectory=attempt.id, reward=float(attempt.index))
    found = collect(collector, 1)
    assert found.replaced == 0
    assert {tuple(each.reward for each in group) for group in found.groups.values()} == {(0.0, 1.0, 2.0)}
