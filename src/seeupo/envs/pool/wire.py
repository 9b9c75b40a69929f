"""Wire protocol between the trainer and its workers: JSON, one message per line.

Any string survives, including lone surrogates. A model may control what a worker writes, so decoding checks every
field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from seeupo.envs.contract import FIELDS
from seeupo.utils.records import read_record

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
    return from_json(dict, message, "message")


def _is_deeper(value: object, depth: int) -> bool:
    """Return whether lists and objects are nested more than `depth` deep."""
    if not isinstance(value, dict | list):
        return False
    return depth == 0 or any(
        _is_deeper(part, depth - 1) for part in (value.values() if isinstance(value, dict) else value)
    )


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
    try:
        result: T = read_record(kind, value, name)
    except TypeError as error:
        raise WireError(str(error)) from None
    return result
