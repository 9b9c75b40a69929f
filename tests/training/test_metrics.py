"""Metrics of an iteration against counts by hand."""

import math

import pytest
import torch

from seeupo.rollout.collector import Collected
from seeupo.training.metrics import iteration_record, sampler_gap
from seeupo.types import StepMetrics, StopReason, Trajectory, Turn, Update


def trajectory(name, group, score, *turns, stop=StopReason.ENVIRONMENT, truncated=0):
    sampled = tuple(
        Turn(name, index, (1,) * prompt, (2,) * len(logprobs), logprobs)
        for index, (prompt, logprobs) in enumerate(turns)
    )
    return Trajectory(name, group, f"task-{group}", sampled, score, score, stop=stop, truncated_responses=truncated)


A = trajectory("a", "1", 1.0, (3, (-0.1, -0.3)), (6, (-0.2,)), stop=StopReason.GOAL)
B = trajectory("b", "1", 0.0, (3, (-1.0,)), truncated=1)
C = trajectory("c", "2", 0.5, (2, (-2.0, -2.0)))
D = trajectory("d", "2", 0.5, (2, (-0.4,)))


def test_the_record_counts_trajectories_and_update_metrics():
    collected = Collected({"2": (C, D), "1": (A, B)}, resampled=1, replaced=2, dropped=3, failed_episodes=4)
    metrics = (StepMetrics(1, {"ratio_mean": 1.1}), StepMetrics(0, {"ratio_mean": 0.9}), StepMetrics(None, {"x": 7.0}))
    record = iteration_record(
        5,
        collected,
        Update(metrics, tuple(collected.trajectories)),
        {"task-1": "easy", "task-2": "hard"},
        update_tokens=64,
        gap=0.25,
        learning_rate=1e-3,
        timings={"collect": 2.0, "update": 1.0},
    )
    assert (record["kind"], record["iteration"]) == ("iteration", 5)
    assert record["reward_mean"] == pytest.approx(0.5)
    assert record["success"] == pytest.approx(0.25)
    assert (record["partial"], record["update_tokens"]) == (0.5, 64)
    assert (record["episodes"], record["groups"], record["dead_groups"]) == (4, 2, 1)
    counts = ("resampled_groups", "replaced_groups", "dropped_groups", "failed_episodes", "truncated_responses")
    assert [record[name] for name in counts] == [1, 2, 3, 4, 1]
    assert record["mean_turns"] == pytest.approx(5 / 4)
    assert (record["action_tokens"], record["prompt_tokens"]) == (7, 16)
    assert record["entropy"] == pytest.approx((0.1 + 0.3 + 0.2 + 1.0 + 2.0 + 2.0 + 0.4) / 7)
    assert record["stops"] == {"environment": 3, "goal": 1}
    assert record["kinds"] == {"easy": 0.5, "hard": 0.5}
    assert record["turns"] == [{"turn": 1, "ratio_mean": 1.1}, {"turn": 0, "ratio_mean": 0.9}]
    assert record["algorithm"] == {"x": 7.0}
    assert record["timings"]["tokens_per_second"] == pytest.approx(3.5)
    assert (record["sampler_gap"], record["learning_rate"]) == (0.25, 1e-3)


def test_the_sampler_gap_is_a_mean_over_tokens():
    class Engine:
        def logprobs(self, turns, *, policy="current"):
            return [torch.tensor(turn.behavior_logprobs) + 0.5 * (turn.trajectory == "a") for turn in turns]

    assert sampler_gap(Engine(), [A, B]) == pytest.approx(3 * 0.5 / 4)
    assert math.isclose(sampler_gap(Engine(), []), 0.0)
