"""Scripted policies: an expert that follows the walkthrough, and a noisy one that strays and finds its way back."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from seeupo.envs.textworld.games import winning_commands
from seeupo.errors import EnvError, suggest
from seeupo.protocols import Expert
from seeupo.types import StepResult

WRONG_COMMAND = "wrong_command"
"""The mistake of a noisy expert: per command, any other possible command instead."""
DEFAULT_RATE = 0.2


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
        rates: Probability of `wrong_command` per command.
        generator: Random numbers.
    """

    def __init__(self, game: Path, rates: Mapping[str, float], generator: Random) -> None:
        self._rate = _rate_of(rates)
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


def _rate_of(rates: Mapping[str, float]) -> float:
    for name in rates:
        if name != WRONG_COMMAND:
            raise EnvError(f"there is no mistake {name!r}; {suggest(name, [WRONG_COMMAND])}")
    rate = rates.get(WRONG_COMMAND, DEFAULT_RATE)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise EnvError(f"{WRONG_COMMAND} is {rate!r}; expected a number in [0, 1]")
    return float(rate)
