"""Wire protocol between the trainer and its workers: JSON, one message per line.

Any string survives, including lone surrogates. A model may control what a worker writes, so decoding checks every
field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from seeupo.envs.contract import FIELDS
from seeupo.utils.numbers import finite_number

T = TypeVar("T")
MAX_DEPTH = 100
"""Limit on nesting, far below Python's: code that uses a message recurses over it from a deeper stack."""


class WireError(Exception):
    """A message cannot be encoded, or a received one is malformed."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the message as one line of JSON."""
    try:
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None


def decode(line: bytes | bytearray) -> dict[str, Any]:
    """Return the message in a line of JSON."""
    try:
        message = json.loads(line.decode(errors="surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a line of JSON ({error}): {bytes(line[:80])!r}") from None
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_deeper(message, MAX_DEPTH):
        raise WireError(f"a message is nested more than {MAX_DEPTH} deep")
    return expect(message, dict, "message")


def _is_deeper(value: object, depth: int) -> bool:
    """Return whether lists and objects are nested more than `depth` deep."""
    if not isinstance(value, dict | list):
        return False
    return depth == 0 or any(
        _is_deeper(part, depth - 1) for part in (value.values() if isinstance(value, dict) else value)
    )


def expect(value: Any, kind: type[T], name: str) -> T:
    """Return the value if it has the expected type; a bool is not an int."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise WireError(f"{name} is {type(value).__name__}; expected {kind.__name__}")
    return value


def to_json(value: Any) -> Any:
    """Return a task or a result as JSON."""
    for kind, fields in FIELDS.items():
        if isinstance(value, kind):
            return {name: to_json(getattr(value, name)) for name in fields}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def from_json(kind: type[T], value: Any, name: str) -> T:
    """Return JSON as a value of this type, such as `StepResult` or `tuple[Task, ...]`; `object` accepts anything.

    Raise `WireError` unless it fits, with all of its fields. `name` is the name of the value for errors.
    """
    result: T = _read(kind, value, name)
    return result


def _read(annotation: Any, value: Any, name: str) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is object or (origin is UnionType and value is None):
        return value
    if annotation in FIELDS:
        table = expect(value, dict, name)
        fields = FIELDS[annotation].items()
        return annotation(**{field: _read(kind, table.get(field), f"{name}.{field}") for field, kind in fields})
    if origin is UnionType:  # X | None
        return _read(arguments[0], value, name)
    if origin is tuple:
        return tuple(_read(arguments[0], item, name) for item in expect(value, list, name))
    if annotation is float:
        if (number := finite_number(value)) is None:
            raise WireError(f"{name} is {type(value).__name__}; expected a finite number")
        return float(number)
    if origin is Literal and value not in arguments:
        raise WireError(f"{name} is {str(value)[:40]!r}; expected one of {', '.join(arguments)}")
    builtin = {Mapping: dict, Literal: str}.get(origin, annotation)
    return expect(value, builtin, name)
