"""Read recipes from TOML, strictly, and write them: a file with mistakes is rejected with all of them at once.

The types of `seeupo.config.schema` define what a file may contain; nothing is evaluated. TOML has no null: the string
"none" means None where a type allows it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from seeupo.config.algorithms import AlgorithmSettings
from seeupo.config.keys import settable_keys
from seeupo.config.option_types import alternatives, takes_none
from seeupo.config.reader import Reader
from seeupo.config.schema import Recipe
from seeupo.config.toml import MAX_CHARACTERS, dotted, format_value, parse_toml, parse_value, toml_lines
from seeupo.config.unknown_keys import hint_at
from seeupo.envs.references import same_code
from seeupo.errors import ConfigError, suggest
from seeupo.utils.text import one_line

MAX_BYTES = 8 * MAX_CHARACTERS


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the library."""
    return sorted(file.name.removesuffix(".toml") for file in _shipped().iterdir() if file.name.endswith(".toml"))


def default_recipe(environment: object) -> str:
    """Return the recipe for an environment; None means the recipe's own."""
    return {None: "tiny-pocket", "pocket": "tiny-pocket", "tasks": "agent"}.get(
        environment if isinstance(environment, str | None) else "", "custom"
    )


def recipe_text(name: str) -> str:
    """Return the file of a shipped recipe, with its comments."""
    if name not in recipe_names():
        hint = suggest(name[:60], recipe_names())
        raise ConfigError([f"unknown recipe {format_value(name)} (write ./NAME.toml for a file); {hint}"])
    return (_shipped() / f"{name}.toml").read_text(encoding="utf-8")


def read_recipe(name_or_path: str, overrides: Sequence[tuple[str, str]] = ()) -> Recipe:
    """Return the recipe of a shipped name or of a TOML file.

    Args:
        name_or_path: A path if it ends in .toml or contains a directory, otherwise a name.
        overrides: Dotted keys and their values as on a command line: TOML, or a string that needs no quotes. Another
            algorithm.name drops the options that the recipe has for its own algorithm, and another environment.name
            those for its own environment.
    """
    text = file_text(name_or_path) if is_path(name_or_path) else recipe_text(name_or_path)
    table = parse_file(text, name_or_path)
    _change_algorithm(table, dict(overrides).get("algorithm.name"))
    _change_environment(table, dict(overrides).get("environment.name"))
    return _recipe(table, [problem for key, value in overrides if (problem := _override(table, key, value))])


def recipe_from_table(table: Mapping[str, Any]) -> Recipe:
    """Return the recipe that nested tables describe, with defaults for missing keys."""
    return _recipe(table, [])


def recipe_to_table(recipe: Recipe) -> dict[str, Any]:
    """Return nested tables with every key of the recipe, except those that are set by other keys."""
    reader = Reader()
    table = reader.storable(_table(recipe, "", reader.problems), "")
    if reader.problems:
        raise ConfigError(reader.problems)
    assert isinstance(table, dict)
    return table


def recipe_to_toml(recipe: Recipe) -> str:
    """Return a complete file, with defaults; reading it gives the same recipe."""
    return "\n".join(toml_lines(recipe_to_table(recipe))).lstrip("\n") + "\n"


def _recipe(table: Mapping[str, Any], problems: list[str]) -> Recipe:
    reader = Reader(problems)
    recipe = reader.section(Recipe, table, "")
    if reader.problems:
        raise ConfigError(reader.problems)
    assert isinstance(recipe, Recipe)
    return recipe


# Files.


def _shipped() -> Traversable:
    return files("seeupo.recipes")


def is_path(name: str) -> bool:
    """Return whether a name on a command line is a path: it ends in .toml or contains a directory."""
    return name.endswith(".toml") or Path(name).name != name


def file_text(path: str) -> str:
    """Return the text of a file that may be hostile.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        if Path(path).is_dir():
            raise ConfigError([f"{one_line(path)} is a directory; expected a TOML file"])
        with Path(path).open("rb") as file:  # perhaps a device without an end
            return file.read(MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x}); save it as UTF-8"
    except FileNotFoundError:
        name = Path(path).name.removesuffix(".toml")
        reason = "does not exist" + (f"; the shipped recipe is called {name!r}" if name in recipe_names() else "")
    except (OSError, ValueError) as error:  # ValueError: the path contains a null character
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise ConfigError([f"{one_line(path)} {reason}"])


def parse_file(text: str, source: str) -> dict[str, Any]:
    """Return the table in a TOML text; errors name its source and the line."""
    try:
        return parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        message, _, position = str(error).removesuffix(")").rpartition(" (at ")
        end = f"line {text.rstrip().count(chr(10)) + 1}, at the end"
        remedy = '; strings need quotes, "none" too' if message == "Invalid value" else ""
        problem = f"{position if position.startswith('line ') else end}: {message[:1].lower()}{message[1:]}{remedy}"
    except RecursionError:
        problem = "its values are nested too deeply"
    except ValueError:
        problem = "a number has too many digits"
    raise ConfigError([f"{one_line(source)}, {problem}"])


# Overrides.


def _change_algorithm(table: dict[str, Any], name: str | None) -> None:
    """Start from the defaults of another algorithm: the recipe's options do not apply to it."""
    section = table.get("algorithm")
    if isinstance(section, dict) and name is not None:
        used = section.get("name", "seeupo")
        if not same_code(str(parse_value(name)), str(used)):  # a class may have moved
            table["algorithm"] = {}


def _change_environment(table: dict[str, Any], name: str | None) -> None:
    """Drop the options of the recipe's environment if another one is chosen."""
    section = table.get("environment")
    if isinstance(section, dict) and name is not None and parse_value(name) != section.get("name", "pocket"):
        section.pop("options", None)


def _override(table: dict[str, Any], key: str, text: str) -> str | None:
    """Set one key in the table, or return the problem with it."""
    *sections, last = path = key.split(".")
    if not all(path):
        return f"{format_value(key)}: expected a section and a key, such as agent.max_turns."
    for depth, name in enumerate(sections, start=1):
        if table.setdefault(name, {}) == "none" and takes_none(hint_at(path[:depth])):
            table[name] = {}  # A key of a section that is off switches the section on.
        if not isinstance(table[name], dict):
            above = one_line(".".join(path[:depth])[:80])
            return f"{one_line(key[:80])}: {above} = {format_value(table[name])} has no keys."
        table = table[name]
    value = parse_value(text)
    only_text = alternatives(hint_at(path)) == (str,)
    table[last] = text if only_text and not isinstance(value, str) else value
    return None


# Writing.


def _table(section: Any, prefix: str, problems: list[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key in settable_keys(type(section)):
        value, path = getattr(section, key.name), dotted(prefix, key.name)
        if isinstance(value, AlgorithmSettings):
            table[key.name] = {"name": value.name, **_without_none(value.options)}
        elif is_dataclass(value):
            table[key.name] = _table(value, path, problems)
        elif takes_none(key.hint) and value == "none":
            problems.append(f'{path} = "none": expected another string, because "none" means None in a file.')
        else:
            table[key.name] = "none" if value is None and takes_none(key.hint) else value
    return table


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an algorithm with "none" for None, in nested tables too."""
    return {
        name: _without_none(value) if isinstance(value, Mapping) else "none" if value is None else value
        for name, value in options.items()
    }
