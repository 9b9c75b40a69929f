"""Build the games of the default options when the environment is installed, so that episodes need not wait."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from seeupo.envs.textworld.env import TextworldFactory, recipe_of
from seeupo.envs.textworld.games import build


def prepare(folder: Path) -> None:
    """Build the games in the environment's folder; runs in its interpreter."""
    factory = TextworldFactory()
    recipes = [recipe_of(task, spelled_out=False) for split in factory.splits for task in factory.tasks(split)]
    games = folder / "games"
    games.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as processes:
        list(processes.map(build, recipes, [games] * len(recipes)))
