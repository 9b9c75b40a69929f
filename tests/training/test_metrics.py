"""The record of an iteration, counted by hand."""

import math

import pytest
import torch

from seeupo.rollout.collector import Collected
from seeupo.training.metrics import iteration_record, sampler_gap
from seeupo.types import StepMetrics, StopReason, Trajectory, Turn, Update


def trajectory(name, group, reward, *turns, stop=StopReason.ENVIRONMENT, cut=0.0):
    samples = tuple(
        Turn(name, turn, (1,) * prompt, (2,) * len(logprobs), logprobs) for turn, (prompt, logprobs) in enumerate(turns)
    )
    return Trajectory(name, group, f"task-{group}", samples, reward, stop=stop, timings={"truncated_responses": cut})


A = trajectory("a", "1", 1.0, (3, (-0.1, -0.3)), (6, (-0.2,)), stop=StopReason.GOAL)
B = trajectory("b", "1", 0.0, (3, (-1.0,)), cut=1.0)
C = trajectory("c", "2", 0.5, (2, (-2.0, -2.0)))
D = trajectory("d", "2", 0.5, (2, (-0.4,)))


def test_a_record_counts_what_was_collected_and_what_the_update_said():
    collected = Collected({"2": (C, D), "1": (A, B)}, resampled=1, replaced=2, dropped=3, failed_episodes=4)
    metrics = (StepMetrics(1, {"ratio_mean": 1.1}), StepMetrics(0, {"ratio_mean": 0.9}), StepMetrics(None, {"x": 7.0}))
    record = iteration_record(
        5,
        collected,
        Update(metrics, tuple(collected.trajectories)),
        {"task-1": "easy", "task-2": "hard"},
        gap=0.25,
        learning_rate=1e-3,
        timings={"collect": 2.0, "update": 1.0},
    )
    assert (record["kind"], record["iteration"]) == ("iteration", 5)
    assert record["reward_mean"] == pytest.approx(0.5)
    assert record["success"] == pytest.approx(0.25)
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


def test_the_gap_is_the_mean_over_tokens():
    class Engine:
        def logprobs(self, samples, *, policy="current"):
            return [torch.tensor(sample.behavior_logprobs) + 0.5 * (sample.trajectory == "a") for sample in samples]

    assert sampler_gap(Engine(), [A, B]) == pytest.approx(3 * 0.5 / 4)
    assert math.isclose(sampler_gap(Engine(), []), 0.0)
