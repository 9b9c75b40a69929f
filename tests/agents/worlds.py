"""Worlds that are slow, break, hang or never end, to run episodes in."""

from __future__ import annotations

import random
import time

from seeupo.envs.pocket import PocketFactory
from seeupo.types import Message, StepResult, Task


class EchoEnv:
    """Repeats the action's length and says so; ends after some steps, solved if the first action was not empty."""

    def __init__(self, *, latency, endless, breaks_at):
        self.latency, self.endless, self.breaks_at = latency, endless, breaks_at

    def reset(self, task: Task, *, seed: int) -> StepResult:
        self.steps, self.wanted, self.first = 0, task.payload.get("steps", 3), None
        self.task = task.id
        return StepResult((Message("user", f"task {task.id}"),))

    def step(self, text: str) -> StepResult:
        if self.latency:
            time.sleep(random.random() * 2 * self.latency)
        if (self.task, self.steps) == self.breaks_at:
            raise RuntimeError("the world has ended")
        self.steps += 1
        self.first = text if self.first is None else self.first
        over = self.steps >= self.wanted and not self.endless
        return StepResult((Message("tool", f"{len(text)} letters at step {self.steps}"),), terminated=over)

    def score(self) -> float:
        return float(bool(self.first))

    def close(self) -> None: ...


class EchoFactory:
    splits = ("train",)

    def __init__(self, *, latency=0.0, endless=False, breaks_at=None, tasks=8):
        self.options = {"latency": latency, "endless": endless, "breaks_at": breaks_at}
        self.count = tasks

    def tasks(self, split):
        return tuple(Task(f"echo-{n}", split, payload={"steps": 1 + n % 4}) for n in range(self.count))

    def make(self):
        return EchoEnv(**self.options)

    def expert(self, task):
        return lambda result: "hello"


class Delayed:
    """Another world, with answers that come after a random time."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        time.sleep(random.random() * 0.002)
        return getattr(self.inner, name)


class DelayedPocket:
    splits = ("train",)

    def __init__(self):
        self.inner = PocketFactory()

    def tasks(self, split):
        return self.inner.tasks(split)

    def make(self):
        return Delayed(self.inner.make())

    def expert(self, task):
        return self.inner.expert(task)
