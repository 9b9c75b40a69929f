"""Read TOML within limits, write it, which the standard library cannot, and format keys and values for messages."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

MAX_CHARACTERS = 2**20
MAX_DOTS = 1000
"""Limit per line: the parser's time grows with the square of the parts of a dotted key."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table in a TOML file, which may be hostile.

    Raises:
        ValueError, RecursionError: The text is not TOML, or is beyond a limit.
    """
    if len(text) > MAX_CHARACTERS:
        raise tomllib.TOMLDecodeError(f"More than {MAX_CHARACTERS} characters (at end of document)")
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MAX_DOTS:
            raise tomllib.TOMLDecodeError(f"More than {MAX_DOTS} dots in a line (at line {number}, column 1)")
    return tomllib.loads(text)


def parse_value(text: str) -> Any:
    """Return a value from a command line: TOML, else JSON, else the text itself. A date is text."""
    for read in (_one_toml_value, json.loads):
        try:
            value = read(text)
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            continue
        return value
    return text


def _one_toml_value(text: str) -> Any:
    """Return a value in TOML; `ValueError` if the text is more than one line of it."""
    table = tomllib.loads(f"value = {text}")
    if len(table) > 1:
        raise ValueError("expected one value")
    return table["value"]


def toml_lines(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the values of a table, then its tables: in TOML, everything after a header belongs to that table."""
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
    """Return a value as TOML, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(name)} = {toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return float.__repr__(value)
    # JSON's strings are TOML's, except that TOML does not accept every character unescaped.
    return re.sub(r"[^ -~]", _escape, json.dumps(value, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return match[0] if match[0].isprintable() else f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


# Keys and values in messages: on one line, and shortened.


def dotted(section: str, name: object) -> str:
    text = str(name)
    shortened = _toml_key(text) if len(text) <= 60 else format_value(text)
    return f"{section}.{shortened}" if section else shortened


def format_value(value: object, depth: int = 2) -> str:
    """Return a value as TOML, shortened for a message."""
    if isinstance(value, str):
        return toml(value[:60]) + ("..." if len(value) > 60 else "")
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of about {math.ceil(value.bit_length() * math.log10(2))} digits"
    if isinstance(value, Mapping):
        items = list(value.items())[: 4 if depth else 0]
        inner = [f"{dotted('', name)} = {format_value(entry, depth - 1)}" for name, entry in items]
        return "{" + ", ".join(inner + ["..."] * (len(inner) < len(value))) + "}"
    if isinstance(value, list | tuple):
        inner = [format_value(entry, depth - 1) for entry in value[: 6 if depth else 0]]
        return "[" + ", ".join(inner + ["..."] * (len(inner) < len(value))) + "]"
    if isinstance(value, bool | int | float):
        return toml(value)
    return " ".join(str(value).split())[:60]  # dates and times; None
