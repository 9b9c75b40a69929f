"""Prepare the recipe of a run: its environment, and the changes of a resumed run. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seeupo.config.changes import Change, check_changes, recipe_changes, renamed
from seeupo.config.loader import read_recipe, recipe_from_table, recipe_to_table
from seeupo.config.schema import Recipe
from seeupo.config.toml import toml
from seeupo.envs.references import reference_to
from seeupo.envs.registry import EnvSpec
from seeupo.envs.trust import Permissions
from seeupo.errors import TrainingError
from seeupo.models.location import locate
from seeupo.protocols import EnvFactory
from seeupo.runs.run_directory import RECIPE, RunDirectory


def next_run_dir(recipe: Recipe | str) -> Path:
    """Return the first of runs/NAME-001, runs/NAME-002, ... that does not exist."""
    name = Path(recipe).stem if isinstance(recipe, str) else "run"
    number = 1
    while (path := Path("runs") / f"{name}-{number:03d}").exists():
        number += 1
    return path


def choose_environment(
    recipe: Recipe, environment: EnvFactory | EnvSpec | str | None, permissions: Permissions
) -> tuple[Recipe, EnvFactory | EnvSpec | None, Permissions]:
    """Return the recipe of the environment that is used, its factory object or spec if given, and what it may do.

    A factory object is recorded by its class, so that a run never claims another environment.
    """
    if environment is None:
        return recipe, None, permissions
    factory: EnvFactory | EnvSpec | None = None
    if isinstance(environment, str):
        name = environment
        permissions = replace(permissions, trust=(*permissions.trust, environment))
    elif isinstance(environment, EnvSpec):
        name = environment.factory
        factory = replace(environment, name=name)
    else:
        factory, name = environment, reference_to(environment)
    options = recipe.environment.options if name == recipe.environment.name else {}
    return replace(recipe, environment=replace(recipe.environment, name=name, options=options)), factory, permissions


def check_model(recipe: Recipe) -> None:
    """Raise if the model of a recipe is not to be found. Its files are read later."""
    if recipe.model.name != "tiny":
        locate(recipe.model.name)


def as_overrides(changes: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return new values of recipe keys as on a command line."""
    return [(key, "none" if value is None else toml(value)) for key, value in (changes or {}).items()]


def resumed_recipe(
    run: RunDirectory, overrides: Sequence[tuple[str, str]], *, accept_changes: bool, trust: Collection[str] = ()
) -> tuple[Recipe, list[Change]]:
    """Return the recipe to resume a run with, and its differences from the recipe that the run has used so far.

    Args:
        overrides: Keys and values as on a command line.
        accept_changes: Whether settings other than the run's length may differ.
        trust: Code that the recipe may name.
    """
    path = str(run.path / RECIPE)
    recipe = read_recipe(path, overrides).with_code(trust)
    recorded, moved = renamed(run.recorded_recipe(), recipe.algorithm.name)
    used = recipe_from_table(recorded).with_code(trust)
    # A run keeps the number of threads that it started with, on which the last digits of its sums depend.
    recipe = replace(recipe, run=replace(recipe.run, threads=recipe.run.threads or used.run.threads))
    checked = recipe_changes(recipe_to_table(used), recipe_to_table(recipe))
    changes = [*moved, *checked]
    typed = [key for key, _ in overrides]
    if run.env_info().get("custom_environment") and any(key.startswith("environment.") for key in typed):
        # The run was started with a factory object, which may now be named.
        named = ("environment.name", "environment.options")
        checked = [change for change in checked if not change.key.startswith(named)]
    check_changes(checked, typed=typed, accepted=accept_changes)
    if other := sorted(recipe.algorithm.needs ^ used.algorithm.needs):
        changed = "; ".join(change.refusal for change in changes if change.key.startswith("algorithm."))
        raise TrainingError(
            f"{changed}. This cannot change when a run is resumed, because checkpoints depend on the "
            f"{' and '.join(other)}. Undo it, or start a new run"
        )
    return recipe, changes
