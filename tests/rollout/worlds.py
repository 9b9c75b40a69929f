"""Test environments that are slow, raise or never end."""

from __future__ import annotations

import random
import time

from seeupo.envs.pocket import PocketFactory
from seeupo.types import Message, StepResult, Task


class EchoEnv:
    """Answers with the length of the action; ends after some steps, solved if the first action was not empty."""

    def __init__(self, *, endless, breaks_at):
        self.endless, self.breaks_at = endless, breaks_at

    def reset(self, task: Task, *, seed: int) -> StepResult:
        self.steps, self.wanted, self.first = 0, task.payload.get("steps", 3), None
        self.task = task.id
        return StepResult((Message("user", f"task {task.id}"),))

    def step(self, text: str) -> StepResult:
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

    def __init__(self, *, endless=False, breaks_at=None):
        self.options = {"endless": endless, "breaks_at": breaks_at}

    def tasks(self, split):
        return tuple(Task(f"echo-{n}", split, payload={"steps": 1 + n % 4}) for n in range(8))

    def make(self):
        return EchoEnv(**self.options)

    def expert(self, task):
        return lambda result: "hello"


class Delayed:
    """A wrapper that delays each call by a random time."""

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
