"""The keys of a section by the fields and the docstring of its dataclass."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from seeupo.config.option_types import hints_of


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
    hints = hints_of(section)
    return {
        field.name: Key(
            field.name,
            hints[field.name],
            field.default if field.default_factory is MISSING else field.default_factory(),
            field.metadata.get("set_by"),
        )
        for field in fields(section)
    }


def settable_keys(section: Any) -> list[Key]:
    """Return the keys that a recipe can set."""
    return [key for key in keys_of(section).values() if key.set_by is None]


def summary(section: Any) -> str:
    """Return the first paragraph of a dataclass's docstring, on one line; empty for anything else."""
    return " ".join(_docstring(section).split("\n\n", 1)[0].split())


def attributes(section: Any) -> dict[str, str]:
    """Return the description of each name in the docstrings' `Attributes:`, on one line; bases come first."""
    meanings: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if is_dataclass(base):
            meanings |= _attributes_in(_docstring(base))
    return meanings


def _attributes_in(docstring: str) -> dict[str, str]:
    _, _, block = docstring.partition("\nAttributes:\n")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in block.splitlines():
        entry = re.match(r" {4}(\w+(?:, \w+)*): (.*)", line)
        if entry:
            names = entry[1].split(", ")
            meanings.update(dict.fromkeys(names, entry[2].strip()))
        elif line.startswith(" " * 5):
            meanings.update({name: f"{meanings[name]} {line.strip()}" for name in names})
        elif line.strip():
            break
    return meanings


def _docstring(section: Any) -> str:
    text = inspect.getdoc(section) if is_dataclass(section) else None
    # A dataclass without a docstring is given its signature as one.
    return "" if text is None or text.startswith(f"{section.__name__}(") else text
