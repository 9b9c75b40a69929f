"""The recipe that a command line asks for, with the code that it may run. Nothing here needs torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields

from seeupo.cli.trust import permissions_for
from seeupo.config.loader import default_recipe, read_recipe
from seeupo.config.schema import Recipe
from seeupo.config.toml import parse_value
from seeupo.envs.trust import Permissions, is_cluster_address, named_code, strings_in
from seeupo.errors import TrainingError

SECTIONS = tuple(section.name for section in fields(Recipe))
CODE_SECTIONS = ("environment", "algorithm", "collect", "agent")
"""Sections whose values may name code."""


@dataclass(frozen=True)
class RequestedRecipe:
    """A recipe with overrides.

    Attributes:
        name: Name or path of the recipe.
        overrides: Dotted keys and their values as on a command line.
        recipe: The recipe with the overrides.
        permissions: Code that may run.
    """

    name: str
    overrides: list[tuple[str, str]]
    recipe: Recipe
    permissions: Permissions


def requested_recipe(
    name: str | None, arguments: Sequence[str], *, trust: Sequence[str], unsandboxed: bool
) -> RequestedRecipe:
    """Read a recipe and its overrides, and ask for consent to code and clusters that only files name.

    What overrides name is trusted, because the user typed it.
    """
    overrides = parse_overrides(arguments)
    name = name or default_recipe(dict(overrides).get("environment.name"))
    recipe = read_recipe(name, overrides)
    permissions = permissions_for(
        named_code(recipe.environment.name, recipe.environment.options),
        in_process=recipe.in_process_code,
        clusters=recipe.clusters,
        trust=trust,
        typed=typed_names(overrides),
        unsandboxed=unsandboxed,
    )
    return RequestedRecipe(name, overrides, recipe, permissions)


def typed_names(overrides: Sequence[tuple[str, str]]) -> list[str]:
    """Return the texts in overrides that may name code or a Ray cluster; each only where a recipe names such."""
    texts = [
        (key.partition(".")[0] == "engine", text)
        for key, value in overrides
        if key.partition(".")[0] in (*CODE_SECTIONS, "engine")
        for text in strings_in(parse_value(value))
    ]
    return [text for in_engine, text in texts if in_engine == is_cluster_address(text)]


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs from --section.key value or --section.key=value."""
    pairs, rest = [], list(arguments)
    while rest:
        key, equals, value = rest.pop(0).partition("=")
        if not key.startswith("--") or not ("." in key or key[2:] in SECTIONS):
            raise TrainingError(
                f"{key!r} is not an option. Override recipe keys like this: --run.seed 1 "
                "(docs/reference/configuration.md)"
            )
        if not equals:
            if not rest:
                raise TrainingError(f"{key} needs a value")
            value = rest.pop(0)
        pairs.append((key[2:], value))
    return pairs


def trust_flags(references: Sequence[str]) -> str:
    """Return the options with which later commands trust the code and the cluster that a recipe names."""
    return "".join(f" --trust {shlex.quote(reference)}" for reference in references)
