"""The adapter: `reset(seed=...) -> (text, info)` and `step(text) -> (text, reward, terminated, truncated, info)`.

Nothing is imported from Gymnasium: whatever has these two methods can be used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from seeupo.envs.gymnasium_text.randomness import OwnRandomness
from seeupo.envs.observation import cut
from seeupo.envs.references import resolve
from seeupo.errors import EnvError, suggest
from seeupo.types import Expert, Message, StepResult, Task

FIRST_SEED = {"train": 0, "test": 1_000_000}


class GymnasiumTextEnv:
    """One episode after another of a wrapped environment, in which a task is a seed."""

    def __init__(self, make: Callable[[], Any], to_score: Callable[[Sequence[float]], float]) -> None:
        """`to_score` makes the score out of the rewards of all steps so far."""
        self._make = make
        self._to_score = to_score
        self._wrapped: Any = None
        self._rewards: list[float] = []
        self._over = True

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Begin anew with the task's seed. The episode's own seed is not used: attempts at a task see one world."""
        self._randomness = OwnRandomness(task.seed)
        with self._randomness():
            if self._wrapped is None:
                self._wrapped = self._make()
            answer = self._wrapped.reset(seed=task.seed)
        text, info = parts(answer, ("observation", "info"), "reset")
        self._rewards = []
        self._over = False
        return StepResult((observation(text),), info=shown(info))

    def step(self, text: str) -> StepResult:
        """Hand the action over as it is. What the wrapped environment raises is its own failure, and comes through."""
        if self._over:
            raise RuntimeError("there is no episode under way; call reset first")
        with self._randomness():
            answer = self._wrapped.step(text)
        text, reward, terminated, truncated, info = parts(
            answer, ("observation", "reward", "terminated", "truncated", "info"), "step"
        )
        self._rewards.append(finite(reward))
        self._over = bool(terminated or truncated)
        return StepResult(
            (observation(text),),
            reward=self._rewards[-1],
            terminated=bool(terminated),
            truncated=bool(truncated and not terminated),
            info=shown(info),
        )

    def score(self) -> float:
        return self._to_score(self._rewards)

    def close(self) -> None:
        """Close the wrapped environment, if it can be closed."""
        wrapped, self._wrapped = self._wrapped, None
        self._over = True
        if hasattr(wrapped, "close"):
            wrapped.close()


class GymnasiumTextFactory:
    """Makes any text environment with Gymnasium's two methods into one of ours. Its tasks are seeds."""

    def __init__(
        self,
        *,
        make: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        train: int = 100,
        test: int = 50,
        rewards: Literal["sum", "last"] = "sum",
        worst: float = 0.0,
        best: float = 1.0,
        success: float | None = None,
        expert: str | Callable[[Task], Expert] | None = None,
    ) -> None:
        """Say what is wrapped, and how its rewards become a score from 0 to 1.

        Args:
            make: "module:callable" that gives an environment, or the callable itself in the trainer's process.
            arguments: keyword arguments for it.
            train: number of tasks in the split "train", which are the seeds from 0 on.
            test: number of tasks in the split "test", which are the seeds from 1,000,000 on.
            rewards: the total of an episode is the sum of its rewards, or the last of them; 0 without any.
            worst: this total, or less, is the score 0. In between, the score is proportional.
            best: this total, or more, is the score 1.
            success: if given, the score is 1 for a total of at least this, else 0; `worst` and `best` do not count.
            expert: "module:callable", or the callable: gives for a task a function of the last result that solves it.
        """
        if rewards not in ("sum", "last"):
            raise EnvError(f"rewards={rewards!r}: 'sum' or 'last' is accepted")
        if not (math.isfinite(worst) and math.isfinite(best) and worst < best):
            raise EnvError(f"worst={worst!r}, best={best!r}: two numbers are needed, the first being the smaller one")
        if success is not None and not math.isfinite(success):
            raise EnvError(f"success={success!r}: a finite number is needed")
        if arguments is not None and not isinstance(arguments, Mapping):
            raise EnvError(f"arguments={arguments!r}: a table of keyword arguments is needed")
        self._numbers = {"train": train, "test": test}
        for split, number in self._numbers.items():
            if not 0 <= number <= FIRST_SEED["test"]:
                raise EnvError(f"{split}={number}: a number of tasks from 0 to {FIRST_SEED['test']} is accepted")
        self._make = called("make", make)
        self._arguments = dict(arguments or {})
        self._expert = None if expert is None else called("expert", expert)
        self._rewards, self._worst, self._best, self._success = rewards, worst, best, success

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self._numbers)

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._numbers:
            raise EnvError(f"there is no split {split!r}; {suggest(split, self.splits)}")
        first = FIRST_SEED[split]
        return [Task(f"{split}-{n:04d}", split, seed=first + n) for n in range(self._numbers[split])]

    def make(self) -> GymnasiumTextEnv:
        return GymnasiumTextEnv(lambda: self._make(**self._arguments), self.score_of)

    def expert(self, task: Task) -> Expert | None:
        if self._expert is None:
            return None
        found: Expert | None = self._expert(task)
        return found

    def score_of(self, rewards: Sequence[float]) -> float:
        """The score of an episode with these rewards."""
        total = sum(rewards if self._rewards == "sum" else rewards[-1:])
        if self._success is not None:
            return float(total >= self._success)
        return min(1.0, max(0.0, (total - self._worst) / (self._best - self._worst)))


def called(option: str, value: str | Callable[..., Any]) -> Callable[..., Any]:
    """What an option names, if it can be called."""
    found = resolve(value) if isinstance(value, str) else value
    if not callable(found):
        raise EnvError(f"{option}={value!r}: it should name something that can be called, and names {found!r}")
    return found


def parts(answer: Any, names: Sequence[str], method: str) -> tuple[Any, ...]:
    """The answer of the wrapped environment, if it has the parts that it should have."""
    if not isinstance(answer, tuple) or len(answer) != len(names):
        what = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__
        raise TypeError(f"{method} should return ({', '.join(names)}) and returned {what}; a wrapper can change that")
    return answer


def observation(text: Any) -> Message:
    if not isinstance(text, str):
        raise TypeError(f"an observation should be text and is {type(text).__name__}; a wrapper can put it into words")
    return Message("user", cut(text))


def finite(reward: Any) -> float:
    try:
        number = float(reward)
    except (TypeError, ValueError):
        raise TypeError(f"a reward should be a number and is {reward!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"a reward should be finite and is {number}")
    return number


def shown(info: Any) -> dict[str, Any]:
    """What of an info can be shown: the entries that are JSON."""
    return {key: value for key, value in info.items() if is_json(key, value)} if isinstance(info, Mapping) else {}


def is_json(key: Any, value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(key, str)
