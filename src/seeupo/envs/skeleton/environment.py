"""A custom environment: open a box, and report the number in it.

Replace the game with your own, then check it and train on it:

    seeupo envs check seeupo.envs.skeleton.environment:SkeletonFactory
    seeupo train custom --environment.name seeupo.envs.skeleton.environment:SkeletonFactory
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from seeupo import Expert, Message, StepResult, Task

NUMBERS = tuple("0123456789")
MAX_ACTIONS = 8


class SkeletonEnv:
    """Runs one episode at a time. For concurrent episodes, several of these are made."""

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Set up the task and return the first messages."""
        # All attempts at a task are compared with one another, so everything that defines it must come from
        # `task`. `seed` is for randomness within an attempt.
        self.number = random.Random(task.seed).choice(NUMBERS)
        self.solved, self.actions = False, 0
        return StepResult((Message("user", "open the box and report the number"),))

    def step(self, text: str) -> StepResult:
        """Take an action, exactly as the model wrote it, and return the new messages."""
        # The text is untrusted: parse it, never evaluate it, and never raise an exception for it.
        self.actions += 1
        match text.split():
            case ["open"]:
                answer = f"number {self.number}"
            case ["report", number]:
                self.solved = number == self.number
                return StepResult((), terminated=True)  # the episode is over
            case _:
                answer = "Error: open or report"
        return StepResult((Message("user", answer),), truncated=self.actions >= MAX_ACTIONS)

    def score(self) -> float:
        """Return the final score, from 0 to 1; 1 is a success. It is what the model is trained on."""
        return float(self.solved)

    def close(self) -> None:
        """Release what the episode holds, such as files and connections."""


class SkeletonFactory:
    """Lists the tasks and makes environments. Keyword arguments of an `__init__` would be the environment's options."""

    splits = ("train", "test")

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, always the same in the same order, each with a unique id."""
        # Tasks of one `kind` are reported together. `payload` may hold JSON that `reset` needs, but never the answer.
        first = 1000 * self.splits.index(split)
        return [Task(f"{split}-{number}", split, kind="box", seed=first + number) for number in range(100)]

    def make(self) -> SkeletonEnv:
        """Create an environment."""
        return SkeletonEnv()

    def expert(self, task: Task) -> Expert | None:
        """Return a function from the last result to the next action that solves the task; None if there is none.

        `seeupo envs check` runs it, and a warm start learns from it.
        """

        def act(result: StepResult) -> str:
            last = result.messages[-1].content.split()[-1]
            return f"report {last}" if last in NUMBERS else "open"

        return act

    def vocabulary(self) -> Sequence[str]:
        """Return all words of the environment, for the model `tiny` only. Delete this method for other models."""
        return (*["open", "the", "box", "and", "report", "number", "Error:", "or"], *NUMBERS)
