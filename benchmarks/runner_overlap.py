"""Measure how well the rollout runner overlaps sampling with a slow environment.

A tiny model, 64 concurrent episodes, and an environment that takes 20 ms per step; reports the share of time spent
sampling.
"""

from __future__ import annotations

import time
from typing import Any

from side_by_side import machine, write_results

from seeupo.envs.pool.pool import EnvPool
from seeupo.inference.local_sampler import LocalSampler
from seeupo.models.loading import load_policy
from seeupo.rollout.runner import Runner
from seeupo.types import Attempt, Completion, Message, SamplingParameters, StepResult, Task

STEP_SECONDS, TURNS, EPISODES = 0.02, 5, 256


class SlowEnv:
    def reset(self, task: Task, *, seed: int) -> StepResult:
        return StepResult((Message("user", "go on"),))

    def step(self, text: str) -> StepResult:
        time.sleep(STEP_SECONDS)
        return StepResult((Message("tool", "went on"),))

    def score(self) -> float:
        return 0.0

    def close(self) -> None: ...


class SlowFactory:
    splits = ("train",)

    def tasks(self, split: str) -> tuple[Task, ...]:
        return tuple(Task(str(number), split) for number in range(EPISODES))

    def make(self) -> SlowEnv:
        return SlowEnv()

    def expert(self, task: Task) -> None:
        return None


class TimedSampler(LocalSampler):
    """Counts the seconds in which it samples."""

    seconds = 0.0

    def poll(self) -> list[Completion]:
        started = time.monotonic()
        completions = super().poll()
        self.seconds += time.monotonic() - started
        return completions


def main() -> None:
    policy = load_policy("tiny")
    results: dict[str, Any] = {"machine": machine(), "step_seconds": STEP_SECONDS, "episodes": EPISODES}
    with EnvPool(SlowFactory(), workers=32) as pool:
        sampler = TimedSampler(policy)
        runner = Runner(
            policy, pool, sampler, parameters=SamplingParameters(max_tokens=24), max_turns=TURNS, deterministic=False
        )
        started = time.monotonic()
        count = len(list(runner.run([Attempt(task.id, task.id, task, 0) for task in pool.tasks("train")])))
        seconds = time.monotonic() - started
    assert count == EPISODES
    results |= {"seconds": seconds, "sampling_share": sampler.seconds / seconds}
    print(f"{count} episodes in {seconds:.1f} s, the sampler busy {results['sampling_share']:.0%} of it")
    write_results("runner_overlap", results)


if __name__ == "__main__":
    main()
