"""Read JSON that another program has written as dataclasses, and check every field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from seeupo.utils.numbers import finite_number


def read_record(kind: Any, value: Any, name: str) -> Any:
    """Return JSON as a value of this type: a dataclass, or a type that its fields may have.

    Numbers must be finite, and records complete; `object` and `Any` accept everything.

    Args:
        kind: The type.
        value: What `json.loads` returned.
        name: Name of the value for errors.

    Raises:
        TypeError: The value, or a field of it, has another type or is missing.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (object, Any) or (origin is UnionType and value is None):
        return value
    if origin is UnionType:  # X | None
        return read_record(arguments[0], value, name)
    if origin is tuple:
        return tuple(read_record(arguments[0], item, name) for item in _expect(value, list, name))
    if origin is Mapping:
        return {key: read_record(arguments[1], item, name) for key, item in _expect(value, dict, name).items()}
    if isinstance(kind, type) and is_dataclass(kind):
        table, fields = _expect(value, dict, name), _fields_of(kind)
        if missing := fields.keys() - table.keys():
            raise TypeError(f"{name} has no {min(missing)}; expected all fields of {kind.__name__}")
        return kind(**{field: read_record(hint, table[field], f"{name}.{field}") for field, hint in fields.items()})
    return _read_scalar(kind, value, name)


def _read_scalar(kind: Any, value: Any, name: str) -> Any:
    if kind is float:
        if (number := finite_number(value)) is None:
            raise TypeError(f"{name} is {type(value).__name__}; expected a finite number")
        return float(number)
    if get_origin(kind) is Literal or issubclass(kind, Enum):
        choices = get_args(kind) or [member.value for member in kind]
        if value not in choices:
            raise TypeError(f"{name} is {str(value)[:40]!r}; expected one of {', '.join(choices)}")
        return value if get_origin(kind) is Literal else kind(value)
    return _expect(value, kind, name)


@cache
def _fields_of(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name."""
    return get_type_hints(kind)


def _expect(value: Any, kind: type, name: str) -> Any:
    """Return the value if it has the expected type; a bool is not an int."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is {type(value).__name__}; expected {kind.__name__}")
    return value
