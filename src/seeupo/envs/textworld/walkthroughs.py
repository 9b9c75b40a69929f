"""Scripted policies: an expert that follows the walkthrough, and a noisy one that strays and finds its way back."""

from __future__ import annotations

import importlib
from pathlib import Path
from random import Random
from typing import Any

from seeupo.envs.textworld.games import winning_commands
from seeupo.protocols import Expert
from seeupo.types import StepResult


def walkthrough_expert(game: Path) -> Expert:
    """Return an expert that follows TextWorld's walkthrough of a compiled game."""
    commands = iter(winning_commands(game))
    return lambda _: next(commands, "look")


class NoisyExpert:
    """Gives random commands now and then, and continues from their consequences.

    It runs its own copy of the game, in which TextWorld updates the winning commands after each command. If the game
    can no longer be won, it looks around until the episode ends.

    Args:
        game: The compiled game.
        rate: Probability per command of any other possible command instead.
        generator: Random numbers.
    """

    def __init__(self, game: Path, rate: float, generator: Random) -> None:
        self._rate = rate
        self._generator = generator
        textworld: Any = importlib.import_module("textworld")
        infos = textworld.EnvInfos(admissible_commands=True, policy_commands=True)
        self._game = textworld.start(str(game), infos)
        self._state = self._game.reset()

    def __call__(self, _: StepResult) -> str:
        right = next(iter(self._state["policy_commands"] or ()), "look")
        command = right
        if self._generator.random() < self._rate:
            others = [each for each in self._state["admissible_commands"] if each != right]
            command = self._generator.choice(others) if others else right
        self._state, _, over = self._game.step(command)
        if over:
            self._game.close()
        return command
