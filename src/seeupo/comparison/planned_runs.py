"""Recipes of a study's runs, and what identifies a run: its settings, its seed and its warm start."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from seeupo.comparison.study_file import Study
from seeupo.config.algorithms import AlgorithmSettings
from seeupo.config.changes import flat, recipe_changes
from seeupo.config.loader import recipe_from_table, recipe_to_table
from seeupo.config.optimizer_settings import CriticSettings, OptimizerSettings
from seeupo.config.schema import CollectSettings, Recipe
from seeupo.errors import ConfigError

Settings = Mapping[str, Any]
"""Values of dotted recipe keys that were chosen for an arm: from the grid, and to match the other arms."""

WARM_START = "warm start"


@dataclass(frozen=True)
class PlannedRun:
    """A run of an arm with a seed, or the warm start of a seed, which all arms share.

    Attributes:
        arm: Name of the arm; "warm start" for a warm start.
        seed: Seed of the run.
        settings: Settings of the arm that the study chose.
        recipe: Recipe of the run; its model is replaced by the policy of the warm start, if there is one.
        warm_start: Warm start of the seed.
    """

    arm: str
    seed: int
    settings: Settings
    recipe: Recipe
    warm_start: PlannedRun | None = None

    @property
    def is_warm_start(self) -> bool:
        return self.arm == WARM_START

    @cached_property
    def name(self) -> str:
        """A file name that identifies arm, seed and recipe."""
        if self.is_warm_start:
            return f"seed-{self.seed}-{_digest(identity(self.recipe))}"
        start = None if self.warm_start is None else identity(self.warm_start.recipe)
        return f"{self.arm}-{self.seed}-{_digest([identity(self.recipe), start])}"


class Planner:
    """Makes the runs of a study. `trust` are the references to code that its arms may name as algorithms."""

    def __init__(self, study: Study, recipe: Recipe, trust: Collection[str] = ()) -> None:
        self.study, self.recipe, self.trust = study, recipe, trust

    def warm_start(self, seed: int) -> PlannedRun | None:
        """Return the warm start of a seed; None if the recipe has none, so that runs start from its model."""
        recipe = self.recipe
        if recipe.warm_start is None:
            return None
        alone = replace(
            recipe,
            run=replace(recipe.run, iterations=0, seed=seed),
            evaluation=replace(recipe.evaluation, every=0, before=True),
            collect=CollectSettings(),
            algorithm=AlgorithmSettings(),
            optimizer=OptimizerSettings(),
            critic=CriticSettings(),
        )
        return PlannedRun(WARM_START, seed, {}, alone)

    def run(self, arm: str, seed: int, settings: Settings) -> PlannedRun:
        """Return the run of an arm with chosen settings.

        Raises:
            ConfigError: The arm's settings are not valid.
        """
        warm_start = self.warm_start(seed)
        table = recipe_to_table(self.recipe)
        changes = self.study.arms[arm]
        table["algorithm"] = dict(changes["algorithm"])  # nothing is inherited from the recipe's algorithm
        for key, value in (*flat({name: changes[name] for name in changes if name != "algorithm"}), *settings.items()):
            _set(table, key, value)
        table["run"]["seed"] = seed
        if warm_start is not None:
            table["warm_start"] = "none"
            table["evaluation"]["before"] = False  # the warm start was evaluated
        try:
            recipe = recipe_from_table(table).with_code(self.trust)
        except ConfigError as error:
            raise ConfigError([f"arms.{arm}: {problem}" for problem in error.problems]) from None
        return PlannedRun(arm, seed, dict(settings), recipe, warm_start)

    @cached_property
    def values(self) -> dict[str, list[Any]]:
        """Values of the grid by dotted key."""
        return {key: list(values) for key, values in flat(self.study.grid)}

    @cached_property
    def grid(self) -> list[dict[str, Any]]:
        """Combinations of settings to try; empty if there is no grid."""
        if not self.values:
            return []
        return [dict(zip(self.values, values, strict=True)) for values in product(*self.values.values())]


def identity(recipe: Recipe) -> list[list[Any]]:
    """Return the settings of a recipe that differ from their defaults; new options with a default do not change it."""
    default = _default_table(recipe)
    changed = recipe_changes(default, recipe_to_table(recipe))
    name = recipe_to_table(recipe)["algorithm"]["name"]
    return [["algorithm.name", name], *sorted([change.key, change.new] for change in changed)]


def differences(run: PlannedRun, recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a run's arm that are not those of the study's recipe, the algorithm's name first."""
    table = recipe_to_table(run.recipe)
    yield "algorithm.name", table["algorithm"]["name"]
    arm = {key: value for key, value in dict(flat(table)).items() if key.startswith("algorithm.")}
    default = dict(flat({"algorithm": _default_table(run.recipe)["algorithm"]}))
    yield from ((key, value) for key, value in arm.items() if default.get(key) != value)
    base = recipe_to_table(recipe)
    for change in recipe_changes(base, table):
        if change.new is None:  # "none" became a table, which is listed by its keys
            continue
        if change.key.partition(".")[0] not in ("algorithm", "run", "warm_start", "evaluation"):
            yield change.key, change.new


def _default_table(recipe: Recipe) -> dict[str, Any]:
    """Return the defaults of all settings, with those of the recipe's algorithm."""
    return recipe_to_table(Recipe(algorithm=replace(recipe.algorithm, options={})))


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for name in sections:
        if not isinstance(table.get(name), dict):
            table[name] = {}
        table = table[name]
    table[last] = value


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
