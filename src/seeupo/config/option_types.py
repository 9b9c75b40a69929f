"""Types of options: the values that a setting or an option of an algorithm accepts, ranges of numbers included."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from seeupo.config.toml import format_value
from seeupo.utils.option_checks import OptionError


@dataclass(frozen=True)
class Range:
    """A range of finite numbers, both ends included unless they are excluded."""

    low: float
    high: float = math.inf
    exclude_low: bool = False
    exclude_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.exclude_low else self.low <= value
        below = value < self.high if self.exclude_high or self.high == math.inf else value <= self.high
        return above and below

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'>' if self.exclude_low else '>='} {self.low:g}"
        return f"in {'(' if self.exclude_low else '['}{self.low:g}, {self.high:g}{')' if self.exclude_high else ']'}"


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
FractionBelow1 = Annotated[float, Range(0, 1, exclude_high=True)]
Clip = tuple[FractionBelow1, NonNegative]
"""Clip range (low, high): a ratio is clipped to [1 - low, 1 + high]."""


class Options:
    """Base class of dataclasses whose values are checked by their types."""

    def __post_init__(self) -> None:
        section: Any = type(self)
        for name, hint in hints_of(section).items():
            value = getattr(self, name)
            if not accepts(hint, value):
                infinite = isinstance(value, float) and not math.isfinite(value)
                raise OptionError(name, value, "a finite number" if infinite else with_article(describe_type(hint)))


@cache
def hints_of(section: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name."""
    hints = get_type_hints(section, include_extras=True)
    return {field.name: hints[field.name] for field in fields(section)}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the parts of a union, without None."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(part for part in parts if part is not NoneType)


def takes_none(hint: Any) -> bool:
    return hint is Any or (NoneType in get_args(hint) and get_origin(hint) in (Union, UnionType))


def split_range(part: Any) -> tuple[Any, Range | None]:
    """Return a type without its range, and the range."""
    return get_args(part) if get_origin(part) is Annotated else (part, None)


def element_types(part: Any, length: int) -> Sequence[Any]:
    """Return the types of the elements of a tuple type; an open tuple has as many as there are values."""
    arguments = get_args(part)
    return [arguments[0]] * length if arguments[-1] is Ellipsis else arguments


def accepts(hint: Any, value: Any) -> bool:
    """Return whether a value has the type and is in its range."""
    return takes_none(hint) if value is None else any(_part_accepts(part, value) for part in alternatives(hint))


def _part_accepts(part: Any, value: Any) -> bool:
    part, limits = split_range(part)
    origin = get_origin(part)
    if origin is tuple:
        hints = element_types(part, len(value)) if isinstance(value, list | tuple) else ()
        return isinstance(value, list | tuple) and len(value) == len(hints) and all(map(accepts, hints, value))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(accepts(get_args(part)[1], inner) for inner in value.values())
    if part in (int, float, bool, str) or origin is Literal:
        return fits(part, value) and (limits is None or value in limits)
    return part is Any or not isinstance(part, type) or isinstance(value, part)


def fits(part: Any, value: object) -> bool:
    """Return whether a value has a simple type: int, float, bool, str or Literal. An integer is a float, too."""
    if get_origin(part) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(part))
    if part in (int, float):
        return isinstance(value, Integral if part is int else Real) and not isinstance(value, bool)
    return part in (bool, str) and isinstance(value, part)


def describe_type(hint: Any) -> str:
    """Describe the accepted values of a type, as a noun phrase without an article."""
    parts = [_describe_part(part) for part in alternatives(hint)]
    return " or ".join([*parts, '"none"'] if takes_none(hint) and hint is not Any else parts)


def _describe_part(part: Any) -> str:
    part, limits = split_range(part)
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
    return names.get(part, "table") + ("" if limits is None else f" {limits}")


def _plural(hint: Any) -> str:
    noun, space, limits = describe_type(hint).partition(" ")
    return f"{noun}{'s' if noun in ('integer', 'number', 'string', 'table') else ''}{space}{limits}"


def with_article(expected: str) -> str:
    """Put an article before a noun phrase that needs one."""
    if expected.startswith("integer"):
        return f"an {expected}"
    return f"a {expected}" if expected.startswith(("number", "string", "table", "list", "finite")) else expected
