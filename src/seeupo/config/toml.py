"""TOML for files and for messages: there is no writer in the standard library."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any


def toml_lines(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The values of a table, then the tables in it: in TOML, all that follows a header belongs to its table."""
    if path:
        yield f"[{path}]"
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{_toml_key(name)} = {toml(value)}"
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield ""
            yield from toml_lines(value, f"{path}.{_toml_key(name)}" if path else _toml_key(name))


def toml(value: Any) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(name)} = {toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(map(_escaped, value)) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return float.__repr__(value) if isinstance(value, float) else str(value)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def _escaped(character: str) -> str:
    if character in ESCAPES:
        return ESCAPES[character]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 2**16 else f"\\U{ord(character):08x}"


# Values and keys in messages: on one line, and no longer than helps.


def one_line(text: str) -> str:
    return text if text.isprintable() else toml(text)


def dotted(key: str, name: object) -> str:
    text = name if isinstance(name, str) else str(name)
    shortened = _toml_key(text) if len(text) <= 60 else shown(text)
    return f"{key}.{shortened}" if key else shortened


def shown(value: object, depth: int = 2) -> str:
    """A value for a message: as TOML has it, shortened."""
    if isinstance(value, str):
        return toml(value[:60]) + ("..." if len(value) > 60 else "")
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of about {math.ceil(value.bit_length() * math.log10(2))} digits"
    if isinstance(value, Mapping):
        inner = (
            [f"{dotted('', name)} = {shown(entry, depth - 1)}" for name, entry in list(value.items())[:4]]
            if depth
            else []
        )
        return "{" + ", ".join(inner + ["..."] * (len(inner) < len(value))) + "}"
    if isinstance(value, list | tuple):
        inner = [shown(entry, depth - 1) for entry in value[:6]] if depth else []
        return "[" + ", ".join(inner + ["..."] * (len(inner) < len(value))) + "]"
    if isinstance(value, bool | int | float):
        return toml(value)
    return " ".join(str(value).split())[:60]  # dates and times; None
