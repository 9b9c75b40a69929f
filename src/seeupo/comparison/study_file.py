"""Read a study file: a recipe, the arms to compare, their seeds, the grid they are tuned on, and what is matched.

A study file is data, like a recipe: it is read strictly, and code that its recipe names needs consent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from seeupo.config.algorithms import is_reference
from seeupo.config.changes import flat
from seeupo.config.loader import file_text, is_path, parse_file, read_recipe
from seeupo.config.option_types import NonNegative, Options, PositiveInt
from seeupo.config.reader import Reader
from seeupo.config.schema import Recipe, TrackerSettings
from seeupo.config.toml import format_value, toml
from seeupo.envs.trust import named_code
from seeupo.errors import ConfigError, suggest
from seeupo.utils.option_checks import OptionError

Match = Literal["optimizer_steps", "tokens", "seconds", "none"]
ARM_KEYS = ("algorithm", "optimizer", "critic", "mismatch", "model.lora")
"""Sections and keys in which arms may differ; everything else is the same for all of them."""
ARM_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True, kw_only=True)
class Study(Options):
    """A comparison of arms on one recipe.

    Attributes:
        recipe: Name of a recipe, or path of a TOML file relative to the study file.
        arms: Tables by name, with the arm's `algorithm` and other settings in which it differs from the recipe. The
            first one is the reference that the others are compared with.
        seeds: Seeds that are reported. All arms of a seed start from the same policy and see the same tasks.
        match: Quantity that the arms spend equally: "optimizer_steps", "tokens" through the policy, or "seconds" of
            training; "none" leaves each arm its own settings.
        tuning_seeds: Seeds on which each arm's settings are chosen from `grid`; they are not reported.
        grid: Values to choose from, by dotted key, the same for all arms.
        changes: Settings that differ from the recipe, for all arms and the warm start.
        threads: Number of PyTorch threads of each run.
        run_seconds: Typical duration of a run in seconds, for the first estimate; "none" means unknown.
    """

    recipe: str
    arms: Mapping[str, Any]
    seeds: tuple[int, ...]
    match: Match = "optimizer_steps"
    tuning_seeds: tuple[int, ...] = ()
    grid: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    threads: PositiveInt = 1
    run_seconds: NonNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, seeds in (("seeds", self.seeds), ("tuning_seeds", self.tuning_seeds)):
            if len(set(seeds)) < len(seeds) or any(seed < 0 for seed in seeds):
                raise OptionError(name, list(seeds), "different numbers from 0")
        if not self.seeds:
            raise OptionError("seeds", [], "at least one seed")
        if both := sorted(set(self.seeds) & set(self.tuning_seeds)):
            raise OptionError("tuning_seeds", both, "seeds that are not reported (`seeds`)")
        if self.grid and not self.tuning_seeds:
            raise OptionError("tuning_seeds", [], "at least one seed, because there is a [grid]")
        self._check_arms()
        self._check_grid()

    def in_process_code(self, recipe: Recipe) -> list[str]:
        """Return the references to algorithms of the arms, and to the reward function of the recipe."""
        names = {recipe.collect.reward, *(str(arm["algorithm"]["name"]) for arm in self.arms.values())}
        return sorted(name for name in names if is_reference(name))

    def needs_consent(self, recipe: Recipe) -> list[str]:
        """Return the references to all code that the arms and the recipe name, and the address of its cluster."""
        environment = recipe.environment
        code = named_code(environment.name, environment.options)
        return [*code, *self.in_process_code(recipe), *recipe.clusters]

    def _check_arms(self) -> None:
        if len(self.arms) < 2:
            raise OptionError(
                "arms", list(self.arms), "at least two arms. Example: [arms.grpo.algorithm] name = 'grpo'"
            )
        for name, arm in self.arms.items():
            if not ARM_NAME.fullmatch(name):
                raise OptionError("arms", name, "names of at most 40 lower-case letters, digits, - and _")
            algorithm = arm.get("algorithm") if isinstance(arm, Mapping) else None
            if not isinstance(algorithm, Mapping) or "name" not in algorithm:
                raise OptionError(f"arms.{name}", arm, "a table with algorithm.name")
            for key, value in flat(arm):
                if not _may_differ(key):
                    raise OptionError(f"arms.{name}.{key}", value, f"keys of {', '.join(ARM_KEYS)} only")

    def _check_grid(self) -> None:
        for key, values in flat(self.grid):
            if not _may_differ(key) or key == "algorithm.name":
                raise OptionError(f"grid.{key}", values, f"keys of {', '.join(ARM_KEYS)} only")
            if not isinstance(values, list | tuple) or not values:
                raise OptionError(f"grid.{key}", values, "a list of values to try")


def _may_differ(key: str) -> bool:
    return any(key == allowed or key.startswith(f"{allowed}.") for allowed in ARM_KEYS)


def study_names() -> list[str]:
    """Return the names of the studies that come with the library."""
    return sorted(file.name.removesuffix(".toml") for file in _shipped().iterdir() if file.name.endswith(".toml"))


def study_text(name: str) -> str:
    """Return the file of a shipped study, with its comments."""
    if name not in study_names():
        hint = suggest(name[:60], study_names())
        raise ConfigError([f"unknown study {format_value(name)} (write ./NAME.toml for a file); {hint}"])
    return (_shipped() / f"{name}.toml").read_text(encoding="utf-8")


def read_study(name_or_path: str) -> tuple[Study, Recipe]:
    """Return a study and its recipe with the study's changes, which every arm starts from."""
    text = file_text(name_or_path) if is_path(name_or_path) else study_text(name_or_path)
    reader = Reader()
    study = reader.section(Study, parse_file(text, name_or_path), "")
    if reader.problems:
        raise ConfigError(reader.problems)
    assert isinstance(study, Study)
    recipe = study.recipe
    if is_path(recipe) and is_path(name_or_path):
        recipe = str(Path(name_or_path).parent / recipe)
    return study, _comparable(read_recipe(recipe, [(key, toml(value)) for key, value in flat(study.changes)]), study)


def _comparable(recipe: Recipe, study: Study) -> Recipe:
    """Return the recipe without what would end runs early or report them elsewhere."""
    if recipe.run.epochs is not None:
        raise ConfigError([f"changes.run: expected iterations instead of run.epochs = {recipe.run.epochs}."])
    run = replace(
        recipe.run,
        iterations=recipe.run.total_iterations,
        threads=study.threads,
        target=None,
        patience=None,
        max_minutes=None,
    )
    if run.iterations == 0:
        raise ConfigError(["run.iterations = 0: expected at least 1 in a comparison. Set changes.run.iterations."])
    return replace(recipe, run=run, trackers=TrackerSettings())


def _shipped() -> Traversable:
    return files("seeupo.recipes") / "studies"
