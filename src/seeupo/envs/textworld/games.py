"""Generate and compile TextWorld games from seeds, and cache them as files.

The same seed gives the same game, byte for byte, so several processes may build the same game at once.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from seeupo.utils.cache import cache_folder

ATTEMPTS = 50
MOST_IN_SCRATCH = 200
"""Number of games that a worker keeps in its temporary folder: 80 MB."""


class Level(NamedTuple):
    """Size of a game, and the number of commands to win it."""

    rooms: int
    objects: int
    commands: int


LEVELS = {"tiny": Level(1, 3, 1), "short": Level(2, 5, 2), "medium": Level(3, 8, 4), "long": Level(5, 12, 8)}

Theme = Literal["house", "basic"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that a game depends on.

    Attributes:
        level: Key of `LEVELS`.
        seed: Seed of the generated game.
        theme: TextWorld's grammar for names and descriptions.
    """

    level: str
    seed: int
    theme: Theme = "house"

    @property
    def name(self) -> str:
        theme = "" if self.theme == "house" else f"-{self.theme}"
        return f"{self.level}-{self.seed}-goal{theme}"


def shared_games() -> Path:
    """Return the folder of games that all workers share; read-only inside a sandbox."""
    return cache_folder() / "envs" / "textworld" / "games"


def mounts(options: Mapping[str, Any], *, role: str) -> dict[Path, Path]:
    """Return what a sandboxed worker may read: the shared games."""
    games = shared_games().absolute()
    return {games: games} if games.is_dir() else {}


def game_file(recipe: Recipe) -> Path:
    """Return the compiled game, building it if necessary; its description is a JSON file beside it.

    It is built in the shared folder if that is writable, else in a temporary folder of this process.
    """
    scratch = Path(scratch_folder().name)
    for folder in (shared_games(), scratch):
        game = folder / f"{recipe.name}.z8"
        if os.access(game, os.R_OK):
            return game
    try:
        shared_games().mkdir(parents=True, exist_ok=True)
        return build(recipe, shared_games())
    except OSError:
        remove_oldest(scratch)
        return build(recipe, scratch)


@functools.cache
def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="textworld-")


def open_game(game: Path, **infos: bool) -> Any:
    """Return an interpreter of a compiled game whose states have this additional information."""
    import textworld

    return textworld.start(str(game), textworld.EnvInfos(**infos))


def winning_commands(game: Path) -> list[str]:
    """Return TextWorld's walkthrough of a compiled game: the commands that win it."""
    commands: list[str] = json.loads(game.with_suffix(".json").read_text())["metadata"]["walkthrough"]
    return commands


def build(recipe: Recipe, folder: Path) -> Path:
    """Build a game in a temporary folder and move it into place, so that no process sees an incomplete game."""
    with tempfile.TemporaryDirectory(prefix=f".{recipe.name}-", dir=folder) as place:
        compiled = compile_winnable_game(recipe, Path(place) / "game.z8")
        for suffix in (".json", ".z8"):  # in this order: a game that exists has its description
            file = compiled.with_suffix(suffix)
            file.chmod(0o644)  # workers run as another user
            file.replace(folder / f"{recipe.name}{suffix}")
    return folder / f"{recipe.name}.z8"


def compile_winnable_game(recipe: Recipe, path: Path) -> Path:
    """Compile the first game of the recipe's seeds whose walkthrough has the level's length and wins.

    TextWorld generates a quest of the requested length, but some games can be won sooner, and in one of a hundred a
    command of the walkthrough is ambiguous ("Which do you mean, the red box or the box?") and does nothing.
    """
    from textworld import generator

    level = LEVELS[recipe.level]
    for attempt in range(ATTEMPTS):
        options = generator.GameOptions()
        options.path = str(path)
        options.force_recompile = True
        options.kb = generator.KnowledgeBase.default()  # reading the rules again would take longer than all the rest
        options.seeds = recipe.seed * ATTEMPTS + attempt
        options.nb_rooms = level.rooms
        options.nb_objects = level.objects
        options.quest_length = level.commands
        options.grammar.only_last_action = True  # of the quest, so that the policy must explore
        options.grammar.theme = recipe.theme
        game = generator.make_game(options)
        if len(game.metadata["walkthrough"]) == level.commands:
            generator.compile_game(game, options)
            if is_won(path):
                return path
    raise RuntimeError(f"found no game of {level.commands} commands for {recipe}")


def is_won(game: Path) -> bool:
    """Return whether a compiled game is won by its walkthrough."""
    interpreter = open_game(game)
    state = interpreter.reset()
    for command in winning_commands(game):
        state, _, _ = interpreter.step(command)
    interpreter.close()
    return bool(state["won"])


def remove_oldest(folder: Path) -> None:
    """Remove old games to make room for one more."""
    games = sorted(folder.glob("*.z8"), key=lambda game: game.stat().st_mtime)
    for game in games[: max(0, len(games) + 1 - MOST_IN_SCRATCH)]:
        game.unlink()
        game.with_suffix(".json").unlink()
