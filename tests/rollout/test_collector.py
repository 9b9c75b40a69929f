"""Groups, sampled until they are whole."""

import math

import pytest

from seeupo.config.schema import CollectSettings
from seeupo.errors import TrainingError
from seeupo.rollout.collector import Collector, shaped
from seeupo.types import Status, StopReason, Task, Trajectory, Turn

TASKS = [Task(f"task-{number}", "train") for number in range(10)]


class Scripted:
    """A runner whose rewards are decided by the test; what it was asked for stays in `asked`."""

    def __init__(self, reward):
        self.reward, self.asked = reward, []

    def run(self, attempts):
        attempts = list(attempts)
        self.asked.append(attempts)
        for attempt in reversed(attempts):  # the order in which episodes finish must not matter
            reward = self.reward(attempt, len(self.asked) - 1)
            failed = math.isnan(reward)
            yield Trajectory(
                attempt.id,
                attempt.group,
                attempt.task.id,
                (Turn(attempt.id, 0, (1,), (2,)),),
                reward,
                stop=StopReason.FAILURE if failed else StopReason.ENVIRONMENT,
                status=Status.FAILED if failed else Status.OK,
                texts=("asked", "[failed: the moon]") if failed else (),
            )


def member(attempt):
    return int(attempt.id.rpartition("-")[2].partition("r")[0])


def collector(reward, **settings):
    runner = Scripted(reward)
    return Collector(runner, TASKS, CollectSettings(tasks=4, group_size=3, **settings), seed=7), runner


def test_groups_are_whole_and_in_a_fixed_order():
    collect, runner = collector(lambda attempt, _: float(member(attempt) == 0))
    found = collect.collect(1)
    assert [trajectory.id for trajectory in found.trajectories] == [attempt.id for attempt in runner.asked[0]]
    assert [len(group) for group in found.groups.values()] == [3] * 4
    assert all(len({each.task for each in group}) == 1 for group in found.groups.values())
    assert len({attempt.seed for attempt in runner.asked[0]}) == 12


def test_tasks_come_round_and_the_cursor_alone_says_where_it_stands():
    one, first = collector(lambda *_: 0.0)
    for iteration in (1, 2, 3):
        one.collect(iteration)
    seen = [attempt.task.id for asked in first.asked for attempt in asked][::3]
    assert len(set(seen[:10])) == 10
    other, second = collector(lambda *_: 0.0)
    other.drawn = 8
    other.collect(3)
    assert second.asked[0] == first.asked[2]


def test_a_group_that_the_infrastructure_failed_is_sampled_again_with_other_seeds():
    def reward(attempt, round_):
        return math.nan if attempt.group.endswith("-002") and round_ == 0 and member(attempt) == 1 else 1.0

    collect, runner = collector(reward)
    found = collect.collect(5)
    assert [attempt.group for attempt in runner.asked[1]] == ["00005-002"] * 3
    tasks = [{attempt.task.id for attempt in asked if attempt.group == "00005-002"} for asked in runner.asked]
    assert tasks[0] == tasks[1]
    assert not {a.seed for a in runner.asked[1]} & {a.seed for a in runner.asked[0]}
    assert (found.resampled, found.dropped, found.failed_episodes, len(found.groups)) == (1, 0, 1, 4)


def test_a_group_that_fails_again_and_again_is_left_out_and_counted():
    collect, runner = collector(lambda a, _: math.nan if a.group.endswith("-000") else 0.0, failed_rounds=2)
    found = collect.collect(1)
    assert len(runner.asked) == 3
    assert (found.resampled, found.dropped, found.failed_episodes) == (2, 1, 9)
    assert len(found.trajectories) == 9


def test_an_environment_that_always_fails_ends_the_run_with_its_own_words():
    collect, _ = collector(lambda *_: math.nan, failed_rounds=1)
    with pytest.raises(TrainingError, match=r"no group of iteration 3 came out whole, in 2 rounds.*the moon"):
        collect.collect(3)


def test_groups_with_equal_rewards_can_be_replaced_by_other_tasks_up_to_a_limit():
    def reward(attempt, round_):
        return float(member(attempt) == 0) if attempt.group.startswith("00001-003") else 1.0

    collect, runner = collector(reward, equal_rounds=2)
    found = collect.collect(1)
    assert [len(asked) for asked in runner.asked] == [12, 9, 9]
    assert (found.replaced, len(found.groups)) == (6, 4)
    assert collect.drawn == 10
    assert len({trajectory.id for trajectory in found.trajectories}) == 12


def test_by_default_equal_groups_are_trained_on_as_they_came():
    collect, runner = collector(lambda *_: 1.0)
    assert collect.collect(1).replaced == 0
    assert len(runner.asked) == 1


def trajectory(reward, *actions):
    samples = tuple(Turn("a", turn, (1,), action) for turn, action in enumerate(actions))
    return Trajectory("a", "g", "t", samples, reward)


@pytest.mark.parametrize(
    ("reward", "actions", "expected"),
    [
        (1.0, [(2,), (2,), (2,)], 1.5),
        (0.4, [(2,), (3,), (2,)], 0.2),
        (0.0, [(2,), (3,)], 0.0),
        (0.0, [(3,), (2,), (2,), (2,)], -1.0),
        (0.4, [(2,), (2,), (3,), (2,)], 0.2),
    ],
)
def test_the_shape_of_the_papers_code(reward, actions, expected):
    assert shaped(trajectory(reward, *actions), "paper_code").reward == pytest.approx(expected)
    assert shaped(trajectory(reward, *actions), "none").reward == reward
