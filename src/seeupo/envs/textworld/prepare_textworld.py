"""Build the games of the default level when the environment is installed, so that episodes need not wait."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import get_args

from seeupo.envs.textworld.games import Theme, build
from seeupo.envs.textworld.textworld_env import TextworldFactory, recipe_of


def prepare(folder: Path) -> None:
    """Build the games of each theme in the environment's folder; runs in its interpreter."""
    factory = TextworldFactory()
    tasks = [task for split in factory.splits for task in factory.tasks(split)]
    recipes = [recipe_of(task, theme) for theme in get_args(Theme) for task in tasks]
    games = folder / "games"
    games.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as processes:
        list(processes.map(build, recipes, [games] * len(recipes)))
