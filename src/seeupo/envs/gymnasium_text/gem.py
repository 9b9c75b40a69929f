"""Environments of `gem-llm` through the adapter. The interpreter needs the package `gem-llm`."""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module

from seeupo.envs.gymnasium_text.gymnasium_env import GymnasiumTextFactory, RewardsInScore
from seeupo.protocols import Expert
from seeupo.types import StepResult, Task

GUESS_THE_NUMBER = "game:GuessTheNumber-v0-"


class GemFactory(GymnasiumTextFactory):
    """Provides a GEM environment by name. The score is the total of its rewards, clipped to [0, 1]."""

    def __init__(
        self,
        *,
        game: str = f"{GUESS_THE_NUMBER}hard",
        train: int = 100,
        test: int = 50,
        rewards: RewardsInScore = "sum",
    ) -> None:
        """Adapt the environment that `gem.make` knows as `game`.

        Args:
            game: Name of the game.
            train: Number of tasks in the split "train".
            test: Number of tasks in the split "test".
            rewards: Total of an episode, as in `GymnasiumTextFactory`.
        """
        make = partial(import_module("gem").make, game)
        expert = binary_search if game.startswith(GUESS_THE_NUMBER) else None
        super().__init__(make=make, train=train, test=test, rewards=rewards, expert=expert)


def binary_search(task: Task) -> Expert:
    """Return an expert that guesses a number by binary search in the range that the first message names."""
    low = high = guess = 0

    def act(result: StepResult) -> str:
        nonlocal low, high, guess
        text = result.messages[-1].content
        if limits := re.search(r"between (\d+) and (\d+)", text):
            low, high = int(limits[1]), int(limits[2])
        elif "is higher than" in text:
            low = guess + 1
        else:
            high = guess - 1
        guess = (low + high) // 2
        return f"\\boxed{{{guess}}}"

    return act
