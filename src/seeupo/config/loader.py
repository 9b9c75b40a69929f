"""Recipes from TOML and back, strictly: everything that is wrong with a file is said at once, one line each.

The types of `seeupo.config.schema` say what a file may hold; nothing is evaluated. TOML has no null: the text "none"
means None where a type allows it.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from seeupo.algorithms import ALGORITHMS
from seeupo.config.schema import Recipe
from seeupo.config.toml import dotted, one_line, shown, toml_lines
from seeupo.envs.options import choices, fits
from seeupo.errors import ConfigError, suggest
from seeupo.types import Algorithm

REGISTRIES: Mapping[Any, Mapping[str, type]] = {Algorithm: ALGORITHMS}
"""A field of such a type is a table whose key `name` picks a class; the other keys are the fields of that class."""

DEEPEST = 20
"""Options may be nested so deeply and no deeper, which keeps recursion over them safe."""


# Names, files and overrides.


def recipe_names() -> list[str]:
    """The recipes that come with the library."""
    return sorted(file.name.removesuffix(".toml") for file in _shipped().iterdir() if file.name.endswith(".toml"))


def recipe_text(name: str) -> str:
    """The file of a shipped recipe, with its comments."""
    if name not in recipe_names():
        near = suggest(name[:60], recipe_names())
        raise ConfigError([f"no recipe is called {shown(name)} (a file is given as ./NAME.toml); {near}"])
    return (_shipped() / f"{name}.toml").read_text(encoding="utf-8")


def read_recipe(name_or_path: str, overrides: Sequence[tuple[str, str]] = ()) -> Recipe:
    """The recipe of a shipped name or of a TOML file, with single keys replaced.

    What ends in .toml or has a folder in it is a file, anything else a name. Overrides are dotted keys and texts, as
    they stand on a command line: a text is a TOML value if it reads as one, and otherwise, or where only text is
    accepted, a string. One that names another algorithm leaves out the recipe's options of the first.
    """
    if name_or_path.endswith(".toml") or Path(name_or_path).name != name_or_path:
        text = _file_text(name_or_path)
    else:
        text = recipe_text(name_or_path)
    table = _parsed(text, name_or_path)
    _name_algorithm(table, dict(overrides).get("algorithm.name"))
    problems = [problem for key, value in overrides if (problem := _override(table, key, value))]
    return _recipe(table, problems)


def recipe_from_table(table: Mapping[str, Any]) -> Recipe:
    """The recipe that nested tables describe; what they leave out has its default."""
    return _recipe(table, [])


def _recipe(table: Mapping[str, Any], problems: list[str]) -> Recipe:
    reader = _Reader(problems)
    recipe = reader.section(Recipe, table, "")
    if reader.problems:
        raise ConfigError(reader.problems)
    assert isinstance(recipe, Recipe)
    return recipe


def _shipped() -> Traversable:
    return files("seeupo.recipes")


def _file_text(path: str) -> str:
    try:
        if Path(path).is_dir():
            raise ConfigError([f"{one_line(path)} is a folder; a recipe is a TOML file"])
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x}); save it as UTF-8"
    except FileNotFoundError:
        name = Path(path).name.removesuffix(".toml")
        known = name in recipe_names()
        reason = (
            f"does not exist; {name!r} alone is the recipe that comes with the library" if known else "does not exist"
        )
    except (OSError, ValueError) as error:  # ValueError: the path has a null character
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise ConfigError([f"{one_line(path)} {reason}"])


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, position = str(error).removesuffix(")").rpartition(" (at ")
        last = text.rstrip().count("\n") + 1
        line = position.removeprefix("line ") if position.startswith("line ") else f"{last}, at its end"
        remedy = '; text stands in quotes, "none" too' if what == "Invalid value" else ""
        problem = f"line {line}: {what[:1].lower()}{what[1:]}{remedy}"
    except RecursionError:
        problem = "its values are nested too deeply"
    except ValueError:
        problem = "a number has more digits than can be read"
    raise ConfigError([f"{one_line(source)}, {problem}"])


def _name_algorithm(table: dict[str, Any], name: str | None) -> None:
    """Another algorithm than the recipe's begins with its own defaults: the recipe's options are not of it."""
    section = table.get("algorithm")
    if isinstance(section, dict) and name not in (None, section.get("name", "seeupo")):
        table["algorithm"] = {}


def _override(table: dict[str, Any], key: str, text: str) -> str | None:
    """Set one key in the table, or say why it cannot be set."""
    *sections, last = path = key.split(".")
    if not all(path):
        return f"{shown(key)} is no key; a key is a section and a name, such as agent.max_turns"
    for depth, name in enumerate(sections, start=1):
        if table.setdefault(name, {}) == "none" and takes_none(_hint_at(path[:depth])):
            table[name] = {}  # naming a key of a section that was off switches it on
        if not isinstance(table[name], dict):
            above = ".".join(path[:depth])
            return f"{one_line(key[:80])}: {one_line(above[:80])} is {shown(table[name])}, which has no keys"
        table = table[name]
    value = _value_of(text)
    table[last] = value if isinstance(value, str) or not _only_text(_hint_at(path)) else text
    return None


def _value_of(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _hint_at(path: Sequence[str]) -> Any:
    """The type of a key, or Any where there is no such key."""
    hint: Any = Recipe
    for name in path:
        sections: list[Any] = [part for part in alternatives(hint) if is_dataclass(part)]
        sections += [section for part in alternatives(hint) for section in REGISTRIES.get(part, {}).values()]
        hint = next((keys[name].hint for section in sections if name in (keys := keys_of(section))), Any)
    return hint


def _only_text(hint: Any) -> bool:
    accepted = choices(hint) or (Any,)
    literals = [value for choice in accepted for value in get_args(choice)]
    types = [choice for choice in accepted if get_origin(choice) is not Literal]
    return all(isinstance(value, str) for value in literals) and all(choice in (str, NoneType) for choice in types)


# What the types say.


@dataclass(frozen=True)
class Key:
    """A key of a section.

    Attributes:
        default: MISSING if the key is needed.
        set_by: the key that decides this one, which no recipe sets then.
    """

    name: str
    hint: Any
    default: Any
    set_by: str | None


@cache
def keys_of(section: Any) -> dict[str, Key]:
    """The keys of a dataclass."""
    hints = get_type_hints(section)
    return {
        field.name: Key(
            field.name,
            hints[field.name],
            field.default if field.default_factory is MISSING else field.default_factory(),
            field.metadata.get("set_by"),
        )
        for field in fields(section)
    }


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The parts of a union, None left out."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(part for part in parts if part is not NoneType)


def takes_none(hint: Any) -> bool:
    return NoneType in get_args(hint) and get_origin(hint) in (Union, UnionType)


def in_words(hint: Any) -> str:
    """What a type accepts, for people."""
    parts = [_part_in_words(part) for part in alternatives(hint)]
    return " or ".join([*parts, '"none"'] if takes_none(hint) else parts)


def _part_in_words(part: Any) -> str:
    origin, arguments = get_origin(part), get_args(part)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(shown(value) for value in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of {_plural(arguments[0])}"
    if origin is tuple:
        same = len(set(arguments)) == 1
        return (
            f"list of {len(arguments)} {_plural(arguments[0])}"
            if same
            else f"list: {', '.join(map(in_words, arguments))}"
        )
    if origin is Mapping and arguments[1] is not Any:
        return f"table of {_plural(arguments[1])}"
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", Any: "anything"}
    return names.get(part, "table")


def _plural(hint: Any) -> str:
    words = in_words(hint)
    return f"{words}s" if words in ("whole number", "number", "text", "table") else words


def registered_name(registry: Mapping[str, type], value: object) -> str | None:
    return next((name for name, entry in registry.items() if type(value) is entry), None)


def _places(section: Any, prefix: str = "", *, off: bool = False) -> Iterator[tuple[str, str, bool]]:
    """All keys: dotted, name, and whether they stand in a section that is off unless it is asked for."""
    for key in keys_of(section).values():
        if key.set_by is not None:
            continue
        here = prefix + key.name
        yield here, key.name, off
        for part in alternatives(key.hint):
            if part in REGISTRIES:
                yield f"{here}.name", "name", off
            inner = [part] if is_dataclass(part) else REGISTRIES.get(part, {}).values()
            for entry in inner:
                yield from _places(entry, f"{here}.", off=off or key.default is None)


def _instead(name: str, key: str, own: Sequence[str]) -> str:
    """What may have been meant by a name that the section `key` does not have."""
    places = [place for place in _places(Recipe) if place[0] != dotted(key, name)]
    known = {place[1] for place in places}
    near = difflib.get_close_matches(name[:60], own, n=1)
    if name in known or not near:
        found = [name] if name in known else difflib.get_close_matches(name[:60], sorted(known), n=1)
        meant = [place for place in places if place[1] in found]
        meant = [place for place in meant if not place[2]] or meant
        near_places = list(dict.fromkeys(place[0] for place in meant))
    else:
        near_places = [dotted(key, near[0])]
    if not near_places:
        return f"there are: {', '.join(own)}"
    return f"did you mean {' or '.join(near_places)}?"


# Reading.


class _Reader:
    """Reads values by type, and collects what is wrong with them."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems

    def section(
        self, section: Any, table: Mapping[str, Any], key: str, registry: Mapping[str, type] | None = None
    ) -> Any:
        """The dataclass that a table describes; None if there are problems. `registry`: where it was picked from."""
        keys = keys_of(section)
        own = [entry.name for entry in keys.values() if entry.set_by is None]
        before, values = len(self.problems), {}
        for name, value in table.items():
            where, entry, seen = dotted(key, name), keys.get(name), len(self.problems)
            if entry is None:
                others = [other for other, entry in (registry or {}).items() if name in keys_of(entry)]
                kind = "section" if isinstance(value, Mapping) and key == "" else "key"
                meant = f"it is one of {', '.join(others)}" if others else _instead(str(name), key, own)
                self.problems.append(f"{where}: there is no such {kind}; {meant}")
            elif entry.set_by is not None:
                self.problems.append(f"{where} is {shown(value)}; leave it out, as {entry.set_by} sets it")
            elif entry.hint in REGISTRIES:
                values[name] = self._registered(entry, value, where)
            else:
                values[name] = self.value(entry.hint, value, where)
            if len(self.problems) > seen:
                values.pop(name, None)
        needed = [name for name in own if keys[name].default is MISSING]
        self.problems += [f"{dotted(key, name)} is needed and has no default" for name in needed if name not in table]
        if key == "" and self.problems:  # a recipe is checked as a whole when its sections are fine
            return None
        return self._made(section, values, key, needed=needed, complete=len(self.problems) == before)

    def _made(self, section: Any, values: dict[str, Any], key: str, *, needed: Sequence[str], complete: bool) -> Any:
        """Call the dataclass, whose own checks stop at the first problem: then again without the value it names.

        A default is blamed only if nothing else is wrong: it may fit what was meant.
        """
        while all(name in values for name in needed):
            try:
                return section(**values)
            except ValueError as error:
                message = " ".join(str(error).split())
                name = message.split(" ", 1)[0]
                if complete or name in values:
                    names_a_key = name in keys_of(section) and key
                    self.problems.append(f"{key}.{message}" if names_a_key else f"{key}: {message}" if key else message)
                if name not in values:
                    return None
                del values[name]
                complete = False
        return None

    def _registered(self, entry: Key, value: Any, key: str) -> Any:
        registry = REGISTRIES[entry.hint]
        if not isinstance(value, Mapping):
            meant = f"; write {key}.name = {shown(value)}" if isinstance(value, str) and value in registry else ""
            return self._refuse(value, key, f"table with a name{meant}")
        name = value.get("name", registered_name(registry, entry.default))
        if not isinstance(name, str) or name not in registry:
            near = suggest(name[:60], list(registry)) if isinstance(name, str) else f"there are: {', '.join(registry)}"
            self.problems.append(f"{key}.name is {shown(name)}; {near}")
            return None
        others = {other: inner for other, inner in value.items() if other != "name"}
        return self.section(registry[name], others, key, registry)

    def value(self, hint: Any, value: Any, key: str) -> Any:
        """The value as the type has it; None, and a problem, if it does not fit."""
        if hint is Any:
            return self.plain(value, key)
        if takes_none(hint) and isinstance(value, str) and value == "none":
            return None
        simple = choices(hint)
        if simple is None:
            return self._compound(hint, value, key)
        if not any(fits(value, choice) for choice in simple):
            return self._refuse(value, key, in_words(hint))
        if (limit := _limit(value)) is not None:
            return self._exceeds(value, key, limit)
        whole = isinstance(value, int) and any(fits(value, choice) for choice in simple if choice is not float)
        return float(value) if isinstance(value, int) and not whole else value

    def _compound(self, hint: Any, value: Any, key: str) -> Any:
        parts = alternatives(hint)
        if len(parts) > 1:
            for part in parts:
                trial = _Reader([])
                read = trial.value(part, value, key)
                if not trial.problems:
                    return read
            return self._refuse(value, key, in_words(hint))
        (part,) = parts
        origin, arguments = get_origin(part), get_args(part)
        if is_dataclass(part) and isinstance(value, Mapping):
            return self.section(part, value, key)
        if origin is tuple and isinstance(value, list | tuple):
            hints = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
            if len(hints) == len(value):
                pairs = enumerate(zip(hints, value, strict=True))
                return tuple(self.value(inner, element, f"{key}[{place}]") for place, (inner, element) in pairs)
        if origin is Mapping and isinstance(value, Mapping):
            return {name: self.value(arguments[1], value[name], dotted(key, name)) for name in self._names(value, key)}
        if origin not in (tuple, Mapping) and not is_dataclass(part):
            raise TypeError(f"{key} has the type {part}, which no recipe can hold")
        return self._refuse(value, key, in_words(hint))

    def plain(self, value: Any, key: str, depth: int = 0) -> Any:
        """A value of any kind that TOML has, dates left out."""
        if depth > DEEPEST:
            self.problems.append(f"{key} is nested too deeply; {DEEPEST} levels are accepted")
            return None
        if isinstance(value, Mapping):
            return {name: self.plain(value[name], dotted(key, name), depth + 1) for name in self._names(value, key)}
        if isinstance(value, list | tuple):
            return [self.plain(inner, f"{key}[{place}]", depth + 1) for place, inner in enumerate(value)]
        if not isinstance(value, bool | int | float | str):
            return self._refuse(value, key, "text, number, true or false, list or table")
        if (limit := _limit(value)) is not None:
            return self._exceeds(value, key, limit)
        return value

    def _names(self, table: Mapping[Any, Any], key: str) -> list[str]:
        wrong = [name for name in table if not isinstance(name, str) or _limit(name) is not None]
        self.problems += [f"{key} has the key {shown(name)}; a key must be text of valid Unicode" for name in wrong]
        return [name for name in table if name not in wrong]

    def _refuse(self, value: Any, key: str, accepted: str) -> None:
        self.problems.append(f"{key} is {shown(value)}; accepted: {accepted}")

    def _exceeds(self, value: Any, key: str, limit: str) -> None:
        self.problems.append(f"{key} is {shown(value)}; it must be {limit}")


def _limit(value: Any) -> str | None:
    """What a value of a type that TOML has would have to be for a file to hold it."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a whole number of at most 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return "finite"
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return "text of valid Unicode"
    return None


# Writing.


def recipe_to_table(recipe: Recipe) -> dict[str, Any]:
    """Nested tables with every key of the recipe, as TOML has them. Keys that another one sets are left out."""
    reader = _Reader([])
    table = reader.plain(_table(recipe, "", reader.problems), "")
    if reader.problems:
        raise ConfigError(reader.problems)
    assert isinstance(table, dict)
    return table


def recipe_to_toml(recipe: Recipe) -> str:
    """A complete file, defaults too; reading it gives the same recipe."""
    return "\n".join(toml_lines(recipe_to_table(recipe))).lstrip("\n") + "\n"


def _table(section: Any, key: str, problems: list[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    made_by: Any = type(section)
    for entry in keys_of(made_by).values():
        value, where = getattr(section, entry.name), dotted(key, entry.name)
        if entry.set_by is not None:
            continue
        if entry.hint in REGISTRIES:
            registry = REGISTRIES[entry.hint]
            if (name := registered_name(registry, value)) is None:
                known = ", ".join(registry)
                problems.append(
                    f"{where} is of the class {type(value).__name__}, which has no name; there are: {known}"
                )
            else:
                table[entry.name] = {"name": name, **_table(value, where, problems)}
        elif is_dataclass(value):
            table[entry.name] = _table(value, where, problems)
        elif takes_none(entry.hint) and value == "none":
            problems.append(f'{where} is the text "none", which a file cannot say: it means that there is no value')
        else:
            table[entry.name] = "none" if value is None and takes_none(entry.hint) else value
    return table
