"""Describe the keys of a recipe by the types of its dataclasses, and explain keys that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from seeupo.algorithms import ALGORITHMS
from seeupo.config.algorithms import AlgorithmSettings
from seeupo.config.schema import Recipe
from seeupo.config.toml import dotted, format_value

REGISTRIES: Mapping[Any, Mapping[str, type]] = {AlgorithmSettings: ALGORITHMS}
"""A field of such a type is a table whose key `name` selects a class; the other keys are the fields of that class."""


@dataclass(frozen=True)
class Key:
    """A key of a section.

    Attributes:
        name: Name of the key, without its section.
        hint: Type of the value.
        default: Default value; MISSING if the key is required.
        set_by: Dotted key that determines this one; a recipe cannot set it then.
    """

    name: str
    hint: Any
    default: Any
    set_by: str | None


@cache
def keys_of(section: Any) -> dict[str, Key]:
    """Return the keys of a dataclass by name."""
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
    """Return the parts of a union, without None."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(part for part in parts if part is not NoneType)


def takes_none(hint: Any) -> bool:
    return NoneType in get_args(hint) and get_origin(hint) in (Union, UnionType)


def sections_of(hint: Any) -> list[Any]:
    """Return the dataclasses that a table of this type may describe."""
    parts = alternatives(hint)
    return [part for part in parts if is_dataclass(part) and part not in REGISTRIES] + [
        entry for part in parts for entry in REGISTRIES.get(part, {}).values()
    ]


def hint_at(path: Sequence[str]) -> Any:
    """Return the type of a key of the recipe, or Any if there is no such key."""
    hint: Any = Recipe
    for name in path:
        hint = next((keys[name].hint for section in sections_of(hint) if name in (keys := keys_of(section))), Any)
    return hint


def describe_type(hint: Any) -> str:
    """Describe the accepted values of a type, as a noun phrase without an article."""
    parts = [_describe_part(part) for part in alternatives(hint)]
    return " or ".join([*parts, '"none"'] if takes_none(hint) else parts)


def _describe_part(part: Any) -> str:
    origin, arguments = get_origin(part), get_args(part)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(format_value, arguments))
    if origin is tuple and len(set(arguments) - {Ellipsis}) > 1:
        return f"list: {', '.join(map(describe_type, arguments))}"
    if origin is tuple:
        length = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"list of {length}{_plural(arguments[0])}"
    if origin is Mapping and arguments[1] is not Any:
        return f"table of {_plural(arguments[1])}"
    names = {int: "integer", float: "number", bool: "true or false", str: "string", Any: "any value"}
    return names.get(part, "table")


def _plural(hint: Any) -> str:
    description = describe_type(hint)
    return f"{description}s" if description in ("integer", "number", "string", "table") else description


def explain_unknown(name: str, section: Any, prefix: str, *, is_table: bool) -> str:
    """Return the problem with a `name` that the dataclass `section`, at the dotted key `prefix`, does not have."""
    path = dotted(prefix, name)
    kind = "section" if is_table and prefix == "" else "key"
    return f"{path}: unknown {kind}; {_suggest_key(name, section, prefix)}"


def _suggest_key(name: str, section: Any, prefix: str) -> str:
    """Suggest keys of the same section first, then keys of other sections with the same or a similar name."""
    registry = next((entries for entries in REGISTRIES.values() if section in entries.values()), {})
    if others := [other for other, entry in registry.items() if name in keys_of(entry)]:
        return f"it is an option of {', '.join(others)}"
    own = [key.name for key in keys_of(section).values() if key.set_by is None]
    elsewhere = [key for key in _recipe_keys(Recipe) if key.path != dotted(prefix, name)]
    names = sorted({key.name for key in elsewhere})
    near = difflib.get_close_matches(name[:60], own, n=1)
    if near and name not in names:
        return f"did you mean {dotted(prefix, near[0])}?"
    near_names = [name] if name in names else difflib.get_close_matches(name[:60], names, n=1)
    matches = [key for key in elsewhere if key.name in near_names]
    matches = [key for key in matches if not key.off] or matches
    paths = " or ".join(dict.fromkeys(key.path for key in matches))
    return f"did you mean {paths}?" if paths else f"available: {', '.join(own)}"


class _RecipeKey(NamedTuple):
    """A key of the recipe: its dotted path, its last name, and whether its section is off by default."""

    path: str
    name: str
    off: bool


def _recipe_keys(section: Any, prefix: str = "", *, off: bool = False) -> Iterator[_RecipeKey]:
    for key in keys_of(section).values():
        if key.set_by is not None:
            continue
        path = prefix + key.name
        yield _RecipeKey(path, key.name, off)
        if key.hint in REGISTRIES:
            yield _RecipeKey(f"{path}.name", "name", off)
        for inner in sections_of(key.hint):
            yield from _recipe_keys(inner, f"{path}.", off=off or key.default is None)
