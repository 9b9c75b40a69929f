"""Tests of the algorithm on a tiny model. Run them with: pytest test_NAME.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seeupo.algorithms.skeleton.algorithm import Skeleton
from seeupo.rl import LocalEngine, Optimizer, Trajectory, Turn, load_policy

TINY = {"width": 16, "layers": 1, "heads": 2, "context": 32}
ACTIONS = ((5, 6), (7, 8, 9), (10,), (11, 12))


def make_engine() -> LocalEngine:
    torch.manual_seed(0)
    return LocalEngine(load_policy("tiny", device="cpu", tiny=TINY), Optimizer(learning_rate=1e-3))


def group(rewards: Sequence[float]) -> list[Trajectory]:
    """Return a group of trajectories of two turns, with these rewards."""
    trajectories = []
    for number, (reward, action) in enumerate(zip(rewards, ACTIONS, strict=True)):
        name = f"trajectory {number}"
        turns = (Turn(name, 0, (1, 2), action), Turn(name, 1, (1, 2, *action, 3), action[::-1]))
        trajectories.append(Trajectory(id=name, group="group", task="task", turns=turns, reward=reward))
    return trajectories


def updated(trajectories: Sequence[Trajectory]) -> list[float]:
    """Return the change of the log-probability of each action after one iteration, by trajectory and turn."""
    engine = make_engine()
    turns = [turn for trajectory in sorted(trajectories, key=lambda each: each.id) for turn in trajectory.turns]
    before = engine.logprobs(turns)
    Skeleton().update(engine, trajectories, generator=torch.Generator().manual_seed(0))
    pairs = zip(before, engine.logprobs(turns), strict=True)
    return [float((new.double() - old.double()).sum()) for old, new in pairs]


def test_actions_of_the_best_trajectory_become_more_likely() -> None:
    changes = updated(group([1.0, 0.0, 0.0, 0.0]))
    assert min(changes[:2]) > 0
    assert sum(changes[:2]) > sum(changes[2:])


def test_equal_rewards_change_nothing() -> None:
    assert not any(updated(group([1.0, 1.0, 1.0, 1.0])))


def test_the_order_of_the_trajectories_does_not_matter() -> None:
    trajectories = group([1.0, 0.0, 0.5, 0.0])
    torch.testing.assert_close(updated(trajectories), updated(trajectories[::-1]))
