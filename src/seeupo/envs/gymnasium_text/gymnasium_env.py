"""Adapt `reset(seed=...) -> (text, info)` and `step(text) -> (text, reward, terminated, truncated, info)`.

Any object with these two methods can be used; Gymnasium is imported for environments that are named by id only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from seeupo.envs.declare import Role
from seeupo.envs.gymnasium_text.by_id import GymnasiumById
from seeupo.envs.gymnasium_text.randomness import EpisodeRandomness
from seeupo.envs.options import seed_ranges
from seeupo.envs.references import resolve_option
from seeupo.errors import EnvError
from seeupo.protocols import Expert
from seeupo.types import Message, StepResult, Task
from seeupo.utils.text import cut

RewardsInScore = Literal["sum", "last", "terminal"]


class GymnasiumTextEnv:
    """Runs episodes of a wrapped environment, one after another; a task is a seed.

    Args:
        make: Function that creates the wrapped environment.
        score_of: Function that maps the scored rewards so far to a score.
        terminal_only: Whether only the reward of the step that ends the episode is scored; the others are then step
            rewards.
    """

    def __init__(
        self, make: Callable[[], Any], score_of: Callable[[Sequence[float]], float], *, terminal_only: bool
    ) -> None:
        self._make = make
        self._score_of = score_of
        self._terminal_only = terminal_only
        self._wrapped: Any = None
        self._rewards: list[float] = []
        self._over = True

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Start an episode with the task's seed. `seed` is not used, so all attempts at a task start equal."""
        self._randomness = EpisodeRandomness(task.seed)
        with self._randomness():
            if self._wrapped is None:
                self._wrapped = self._make()
            answer = self._wrapped.reset(seed=task.seed)
        text, info = unpack(answer, ("observation", "info"), "reset")
        self._rewards = []
        self._over = False
        return StepResult((observation(text),), info=json_entries(info))

    def step(self, text: str) -> StepResult:
        """Pass the action on unchanged. Exceptions of the wrapped environment propagate."""
        if self._over:
            raise RuntimeError("no episode is running; call reset first")
        with self._randomness():
            answer = self._wrapped.step(text)
        text, reward, terminated, truncated, info = unpack(
            answer, ("observation", "reward", "terminated", "truncated", "info"), "step"
        )
        reward = float(reward)
        self._over = bool(terminated or truncated)
        if self._over or not self._terminal_only:
            self._rewards.append(reward)
        return StepResult(
            (observation(text),),
            reward=0.0 if self._over and self._terminal_only else reward,
            terminated=bool(terminated),
            truncated=bool(truncated and not terminated),
            info=json_entries(info),
        )

    def score(self) -> float:
        return self._score_of(self._rewards)

    def close(self) -> None:
        """Close the wrapped environment if it has a `close` method."""
        wrapped, self._wrapped = self._wrapped, None
        self._over = True
        if hasattr(wrapped, "close"):
            wrapped.close()


class GymnasiumTextFactory:
    """Adapts a text environment with Gymnasium's two methods. Tasks are seeds."""

    splits = ("train", "test")

    def __init__(
        self,
        *,
        id: str | None = None,
        make: str | Callable[..., Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        train: int = 100,
        test: int = 50,
        rewards: RewardsInScore = "sum",
        worst: float = 0.0,
        best: float = 1.0,
        success: float | None = None,
        expert: str | Callable[[Task], Expert] | None = None,
        instructions: str | None = None,
        actions: Sequence[str] | None = None,
    ) -> None:
        """Set what is wrapped and how its rewards become a score from 0 to 1.

        Args:
            id: Id of an environment that Gymnasium knows. Its observations are rendered as text.
            make: Function that creates an environment, or its class; or "module:name" of such a class or of a function
                marked with `seeupo.env_maker`. Either `id` or `make` is required.
            arguments: Keyword arguments of the environment or of `make`.
            train: Number of tasks in the split "train"; their seeds start at 0.
            test: Number of tasks in the split "test"; their seeds start at 1,000,000.
            rewards: Total of an episode: the "sum" of its rewards, the "last" one, or the "terminal" one, which is that
                of the step that ended the episode; 0 without any. With "terminal" the rewards of all other steps are
                step rewards, which are not part of the score.
            worst: Total that scores 0. Totals between `worst` and `best` score proportionally.
            best: Total that scores 1.
            success: Threshold: a total of at least this scores 1, any other 0. Replaces `worst` and `best`.
            expert: Function that returns an expert for a task, or "module:name" of one marked with
                `seeupo.expert_maker`.
            instructions: First line of each episode of an environment by id; the id by default.
            actions: Names of the discrete actions of an environment by id, in order; their numbers by default.
        """
        if (id is None) == (make is None):
            raise EnvError("expected either the option id, such as FrozenLake-v1, or make, such as my_envs.py:MyEnv")
        if id is None and (instructions is not None or actions is not None):
            raise EnvError("the options instructions and actions are for id; with make, the environment has its own")
        if not (math.isfinite(worst) and math.isfinite(best) and worst < best):
            raise EnvError(f"worst={worst!r}, best={best!r}: expected finite numbers with worst < best")
        if success is not None and not math.isfinite(success):
            raise EnvError(f"success={success!r}: expected a finite number")
        if arguments is not None and not isinstance(arguments, Mapping):
            raise EnvError(f"arguments={arguments!r}: expected a table of keyword arguments")
        self._seeds = seed_ranges(train=train, test=test)
        self._arguments = dict(arguments or {})
        if id is None:
            self._make = resolve_option("make", make, Role.ENV)
        else:
            self._make = GymnasiumById(id, instructions, actions)
            self._make(**self._arguments).close()  # a mistake is an error now
        self._expert: Any = None if expert is None else resolve_option("expert", expert, Role.EXPERT)
        self._rewards: RewardsInScore = rewards
        self._worst = worst
        self._best = best
        self._success = success

    @property
    def separate_step_rewards(self) -> bool:
        """Whether the score leaves out the rewards that steps return."""
        return self._rewards == "terminal"

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}-{index:04d}", split, seed=seed) for index, seed in enumerate(self._seeds[split])]

    def make(self) -> GymnasiumTextEnv:
        make = partial(self._make, **self._arguments)
        return GymnasiumTextEnv(make, self.score_of, terminal_only=self.separate_step_rewards)

    def expert(self, task: Task) -> Expert | None:
        expert: Expert | None = None if self._expert is None else self._expert(task)
        return expert

    def score_of(self, rewards: Sequence[float]) -> float:
        """Return the score of an episode with these scored rewards."""
        total = sum(rewards[-1:] if self._rewards == "last" else rewards)
        if self._success is not None:
            return float(total >= self._success)
        return min(1.0, max(0.0, (total - self._worst) / (self._best - self._worst)))


def unpack(answer: Any, names: Sequence[str], method: str) -> tuple[Any, ...]:
    """Return the answer of the wrapped environment if it is a tuple of the right length."""
    if not isinstance(answer, tuple) or len(answer) != len(names):
        actual = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__
        raise TypeError(f"{method} returned {actual}; expected ({', '.join(names)}). Use a wrapper to convert it.")
    return answer


def observation(text: Any) -> Message:
    if not isinstance(text, str):
        raise TypeError(f"observation is {type(text).__name__}; expected str. Use a wrapper to convert it.")
    return Message("user", cut(text))


def json_entries(info: Any) -> dict[str, Any]:
    """Return the entries of `info` that can be encoded as JSON."""
    entries: dict[str, Any] = {}
    if isinstance(info, Mapping):
        for key, value in info.items():
            with suppress(TypeError, ValueError, RecursionError):
                json.dumps(value, allow_nan=False)
                entries |= {key: value} if isinstance(key, str) else {}
    return entries
