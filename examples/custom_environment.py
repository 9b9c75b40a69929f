"""Train on a custom environment: guess a number from 1 to 7 in three turns, with hints.

    python examples/custom_environment.py

The expert guesses at random among the numbers that the hints have left. A warm start on its demonstrations teaches the
policy the format; reinforcement learning improves on the expert, towards binary search, which always succeeds.
docs/environments/custom-environments.md has the rules that an environment must follow.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import seeupo
from seeupo import Expert, Message, StepResult, Task

NUMBERS = tuple("1234567")


class GuessNumber:
    """One episode at a time; it implements the protocol `seeupo.Env`."""

    def reset(self, task: Task, *, seed: int) -> StepResult:
        # All attempts at a task are compared with one another, so the number depends on the task, not on `seed`.
        self.number, self.solved = random.Random(task.seed).choice(NUMBERS), False
        return StepResult((Message("user", "guess"),))

    def step(self, text: str) -> StepResult:
        guess = text.strip()
        if guess not in NUMBERS:  # text of the model is untrusted: parse it, never raise for it
            return StepResult((Message("user", "error"),))
        self.solved = guess == self.number
        hint = "yes" if self.solved else "higher" if guess < self.number else "lower"
        return StepResult((Message("user", hint),), terminated=self.solved)

    def score(self) -> float:
        return float(self.solved)

    def close(self) -> None: ...


class GuessNumberFactory:
    """The tasks, their environment and the expert; it implements the protocol `seeupo.EnvFactory`."""

    splits = ("train", "test")
    make = GuessNumber

    def tasks(self, split: str) -> Sequence[Task]:
        first = 1000 * self.splits.index(split)
        return [Task(f"{split}-{number}", split, seed=first + number) for number in range(64)]

    def expert(self, task: Task) -> Expert:
        generator, left, guesses = random.Random(f"expert {task.id}"), list(NUMBERS), list[str]()

        def act(result: StepResult) -> str:
            hint = result.messages[-1].content
            if guesses:
                left[:] = [n for n in left if (n > guesses[-1] if hint == "higher" else n < guesses[-1])]
            guesses.append(generator.choice(left))
            return guesses[-1]

        return act

    def vocabulary(self) -> tuple[str, ...]:
        """All words of the environment; each becomes one token of a `tiny` model."""
        return (*NUMBERS, "guess", "higher", "lower", "yes", "error")


RECIPE: Mapping[str, Mapping[str, Any]] = {
    "run": {"iterations": 20},
    "model": {"name": "tiny", "tiny": {"width": 64, "layers": 2, "heads": 4, "context": 64}},
    "agent": {"reasoning": False, "max_tokens": 4, "max_turns": 3, "concurrency": 256},
    "collect": {"tasks": 32, "group_size": 8},
    "optimizer": {"learning_rate": 5e-4, "beta1": 0.0, "weight_decay": 0.0},
    "warm_start": {"episodes": 1024, "batches": 100, "learning_rate": 2e-3},
}


def main(recipe: Mapping[str, Mapping[str, Any]] = RECIPE, run_dir: Path | None = None) -> float:
    """Train, and return the success rate of the greedy policy on held-out tasks."""
    environment = GuessNumberFactory()
    result = seeupo.train(seeupo.Recipe.from_table(recipe), run_dir=run_dir, environment=environment)
    sampled = seeupo.evaluate(result.run_dir, environment, attempts=4).summary()["avg@4"]
    greedy = seeupo.evaluate(result.run_dir, environment, attempts=1, k=1, temperature=0).summary()["avg@1"]
    print(f"run directory {result.run_dir}: avg@4 {sampled['value']:.2f}, greedy {greedy['value']:.2f}")
    return float(greedy["value"])


if __name__ == "__main__":
    main()
