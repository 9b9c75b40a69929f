"""TextWorld's games as an environment, and its experts. Episodes need the package `textworld`; tasks do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

from seeupo.envs.options import mistake_rates, seed_ranges
from seeupo.envs.textworld.commands import VERBS, CommandError, read_command
from seeupo.envs.textworld.games import LEVELS, Recipe, Theme, game_file, open_game, winning_commands
from seeupo.errors import EnvError, suggest
from seeupo.protocols import Expert
from seeupo.types import Message, StepResult, Task
from seeupo.utils.text import cut

INSTRUCTIONS = (
    "You are playing a text adventure. Reach the goal that you are told first. In each reply give one command, as its "
    "last line. Commands begin with one of: " + ", ".join(VERBS) + ". For example: take key from box"
)


class TextworldEnv:
    """Runs one game after another, each in a fresh game interpreter. The only reward is 1 for winning."""

    def __init__(self, game_of: Callable[[Task], Path], *, show_commands: bool) -> None:
        self._game_of = game_of
        self._show_commands = show_commands
        self._game: Any = None
        self._over = True
        self._won = False

    def reset(self, task: Task, *, seed: int) -> StepResult:
        """Return the goal and the first observation. The task determines the game; `seed` is not used."""
        self.close()
        self._game = open_game(self._game_of(task), admissible_commands=self._show_commands)
        state = self._game.reset()
        self._over = False
        self._won = False
        return StepResult((Message("system", INSTRUCTIONS), self._observation(state)))

    def step(self, text: str) -> StepResult:
        """Pass a command to the game. Other text never reaches the game; the observation is an error."""
        if self._over:
            raise RuntimeError("no episode is running; call reset first")
        try:
            command = read_command(text)
        except CommandError as error:
            return StepResult((Message("user", f"Error: {error}"),))
        state, _, _ = self._game.step(command)
        self._won = bool(state["won"])
        self._over = self._won or bool(state["lost"])
        return StepResult((self._observation(state),), reward=float(self._won), terminated=self._over)

    def score(self) -> float:
        """Return 1 if the game is won, else 0."""
        return float(self._won)

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
            self._game = None
        self._over = True

    def _observation(self, state: Any) -> Message:
        text = narration(state["feedback"])
        if self._show_commands and not self._over:
            text += "\n\nPossible commands: " + ", ".join(state["admissible_commands"])
        return Message("user", cut(text))


class TextworldFactory:
    """Provides games of one level, or of all. Tasks are seeds, and no game is in two splits."""

    splits = ("train", "test")

    def __init__(
        self,
        *,
        level: Literal["tiny", "short", "medium", "long", "all"] = "medium",
        train: int = 100,
        test: int = 50,
        theme: Theme = "house",
        show_commands: bool = False,
    ) -> None:
        """Choose the games.

        Args:
            level: Rooms, objects and commands to win: tiny 1, 3, 1; short 2, 5, 2; medium 3, 8, 4; long 5, 12, 8.
            train: Number of games of each level in the split "train".
            test: Number of games of each level in the split "test".
            theme: TextWorld's grammar: "house" has varied descriptions, "basic" short sentences and numbered names.
            show_commands: Whether each observation lists the possible commands.
        """
        self._seeds = seed_ranges(train=train, test=test)
        self._levels = tuple(LEVELS) if level == "all" else (level,)
        self._theme: Theme = theme
        self._show_commands = show_commands

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks level by level, in the order of their seeds."""
        return [
            Task(id=f"{split}-{level}-{index:04d}", split=split, kind=level, seed=seed)
            for level in self._levels
            for index, seed in enumerate(self._seeds[split])
        ]

    def make(self) -> TextworldEnv:
        return TextworldEnv(self._game_file, show_commands=self._show_commands)

    def expert(self, task: Task) -> Expert:
        """Return an expert that follows TextWorld's walkthrough of the game."""
        commands = iter(winning_commands(self._game_file(task)))
        return lambda _: next(commands, "look")

    def noisy_expert(self, task: Task, *, seed: int, rates: Mapping[str, float]) -> Expert:
        """Return an expert that gives random commands at the rate `wrong_command`, for warm-start demonstrations."""
        rate = mistake_rates(rates, {"wrong_command": 0.2})["wrong_command"]
        return NoisyExpert(self._game_file(task), rate, Random(seed))

    def _game_file(self, task: Task) -> Path:
        return game_file(recipe_of(task, self._theme))


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
        self._game = open_game(game, admissible_commands=True, policy_commands=True)
        self._state = self._game.reset()

    def __call__(self, _: StepResult) -> str:
        command: str = next(iter(self._state["policy_commands"] or ()), "look")
        if self._generator.random() < self._rate:
            others = [other for other in self._state["admissible_commands"] if other != command]
            command = self._generator.choice(others) if others else command
        self._state, _, over = self._game.step(command)
        if over:
            self._game.close()
        return command


def recipe_of(task: Task, theme: Theme = "house") -> Recipe:
    if task.kind not in LEVELS:
        raise EnvError(f"task {task.id!r}: there is no level {task.kind!r}; {suggest(task.kind, list(LEVELS))}")
    return Recipe(task.kind, task.seed, theme)


def narration(feedback: str) -> str:
    """Return the game's text without its title picture, prompt, status line and final question."""
    lines = [line.strip() for line in feedback.splitlines()]
    picture = [number for number, line in enumerate(lines) if "$$" in line]
    lines = lines[picture[-1] + 1 if picture else 0 :]
    shown = [line for line in lines if not line.startswith((">", "Would you like to RESTART"))]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(shown)).strip()
