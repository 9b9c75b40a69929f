"""Games: generated and compiled by TextWorld from a seed, once, and kept as files.

The same seed gives the same game, byte for byte, so it does not matter who makes it, or that two do at once.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seeupo.utils.cache import cache_folder

ATTEMPTS = 50
MOST_IN_SCRATCH = 200
"""Games that a worker keeps in its own temporary folder: 80 MB."""


@dataclass(frozen=True, slots=True)
class Level:
    """How large a game is, and how many commands it takes to win."""

    rooms: int
    objects: int
    commands: int


LEVELS: Mapping[str, Level] = {
    "tiny": Level(rooms=1, objects=3, commands=1),
    "short": Level(rooms=2, objects=5, commands=2),
    "medium": Level(rooms=3, objects=8, commands=4),
    "long": Level(rooms=5, objects=12, commands=8),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a game depends on. `spelled_out`: its goal is told step by step, and not by the last step alone."""

    level: str
    seed: int
    spelled_out: bool

    @property
    def name(self) -> str:
        return f"{self.level}-{self.seed}-{'steps' if self.spelled_out else 'goal'}"


def shared_games() -> Path:
    """Where all workers find games. Inside a sandbox it can only be read."""
    return cache_folder() / "envs" / "textworld" / "games"


def mounts(options: Mapping[str, Any], *, role: str) -> dict[Path, Path]:
    """What a sandboxed worker may read: the games that are there."""
    games = shared_games().absolute()
    return {games: games} if games.is_dir() else {}


def game_file(recipe: Recipe) -> Path:
    """The compiled game, with its description as JSON beside it; made now if nobody has made it before.

    It is made in the shared folder if that can be written, else in a temporary folder of this process.
    """
    scratch = Path(scratch_folder().name)
    for folder in (shared_games(), scratch):
        found = folder / f"{recipe.name}.z8"
        if os.access(found, os.R_OK):
            return found
    try:
        shared_games().mkdir(parents=True, exist_ok=True)
        return build(recipe, shared_games())
    except OSError:
        forget_oldest(scratch)
        return build(recipe, scratch)


@functools.cache
def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="textworld-")


def winning_commands(game: Path) -> list[str]:
    """The commands that win a compiled game."""
    commands: list[str] = json.loads(game.with_suffix(".json").read_text())["metadata"]["walkthrough"]
    return commands


def build(recipe: Recipe, folder: Path) -> Path:
    """Make a game in a folder of its own and move it to its place: nobody ever sees half a game."""
    with tempfile.TemporaryDirectory(prefix=f".{recipe.name}-", dir=folder) as place:
        compiled = first_that_can_be_won(recipe, Path(place) / "game.z8")
        for suffix in (".json", ".z8"):  # in this order: where the game is, its description is too
            made = compiled.with_suffix(suffix)
            made.chmod(0o644)  # workers run as another user
            made.replace(folder / f"{recipe.name}{suffix}")
    return folder / f"{recipe.name}.z8"


def first_that_can_be_won(recipe: Recipe, path: Path) -> Path:
    """Compile the first game of the recipe's seeds that takes as many commands as its level says, and is won by them.

    TextWorld draws a quest of the wanted length, but in some games there is a shorter way; and in one of a hundred a
    gold command is ambiguous ("Which do you mean, the red box or the box?") and does nothing.
    """
    generator: Any = importlib.import_module("textworld.generator")
    level = LEVELS[recipe.level]
    for attempt in range(ATTEMPTS):
        options = generator.GameOptions()
        options.path, options.force_recompile = str(path), True
        options.kb = generator.KnowledgeBase.default()  # reading the rules anew takes longer than all the rest
        options.seeds = recipe.seed * ATTEMPTS + attempt
        options.nb_rooms, options.nb_objects, options.quest_length = level.rooms, level.objects, level.commands
        options.grammar.only_last_action = not recipe.spelled_out
        game = generator.make_game(options)
        if len(game.metadata["walkthrough"]) == level.commands:
            generator.compile_game(game, options)
            if is_won(path):
                return path
    raise RuntimeError(f"no game of {level.commands} commands was found for {recipe}")


def is_won(game: Path) -> bool:
    """Whether its gold commands win a compiled game."""
    played: Any = importlib.import_module("textworld").start(str(game))
    state = played.reset()
    for command in winning_commands(game):
        state, _, _ = played.step(command)
    played.close()
    return bool(state["won"])


def forget_oldest(folder: Path) -> None:
    """Make room for one more game."""
    games = sorted(folder.glob("*.z8"), key=lambda game: game.stat().st_mtime)
    for game in games[: max(0, len(games) + 1 - MOST_IN_SCRATCH)]:
        game.unlink()
        game.with_suffix(".json").unlink()
