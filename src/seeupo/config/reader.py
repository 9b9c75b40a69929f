"""Convert nested tables to the dataclasses of a recipe, and collect every problem on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from typing import Any, cast, get_args, get_origin

from seeupo.config.algorithms import (
    AlgorithmSettings,
    is_reference,
    option_values,
    options_class,
    plugin_names,
    shipped_algorithms,
)
from seeupo.config.keys import keys_of
from seeupo.config.option_types import (
    accepts,
    alternatives,
    describe_type,
    element_types,
    fits,
    split_range,
    takes_none,
    with_article,
)
from seeupo.config.toml import dotted, format_value
from seeupo.config.unknown_keys import explain_unknown
from seeupo.errors import suggest
from seeupo.protocols import Algorithm
from seeupo.utils.option_checks import OptionError

MAX_DEPTH = 20
"""Nesting limit of options, which keeps recursion over them safe."""

OWN = "Name your own by its class: my_module:MyAlgorithm"
"""What to write for an algorithm that no installed package names."""


class Reader:
    """Reads values by type and collects problems.

    Attributes:
        problems: One line for each problem: the key, its value and what is expected.
    """

    def __init__(self, problems: Sequence[str] = ()) -> None:
        self.problems = list(problems)

    def section(self, section: Any, table: Mapping[str, Any], key: str) -> Any:
        """Return the dataclass that a table describes, or None if there are problems."""
        keys = keys_of(section)
        before, values = len(self.problems), {}
        for name, value in table.items():
            path, entry, seen = dotted(key, name), keys.get(name), len(self.problems)
            if entry is None:
                self.problems.append(explain_unknown(str(name), section, key, is_table=isinstance(value, Mapping)))
            elif entry.set_by is not None:
                self.problems.append(f"{path} = {format_value(value)}: it is set by {entry.set_by}. Leave it out.")
            elif entry.hint is AlgorithmSettings:
                values[name] = self._algorithm(value, path)
            else:
                values[name] = self.value(entry.hint, value, path)
            if len(self.problems) > seen:
                values.pop(name, None)
        required = [entry.name for entry in keys.values() if entry.default is MISSING]
        self.problems += [f"{dotted(key, name)}: a value is required." for name in required if name not in table]
        if key == "" and self.problems:  # Checks across sections need valid sections.
            return None
        return self._construct(section, values, key, required=required, complete=len(self.problems) == before)

    def _construct(
        self, section: Any, values: dict[str, Any], key: str, *, required: Sequence[str], complete: bool
    ) -> Any:
        """Call the dataclass, and again without each value that its checks reject: they stop at the first one.

        A default is reported only if nothing else is wrong, because it may fit the value that was meant.
        """
        while all(name in values for name in required):
            try:
                return section(**values)
            except OptionError as error:
                name = error.option.partition(".")[0]
                if complete or name in values:
                    self._reject(error.value, f"{key}.{error.option}".lstrip("."), error.expected)
                if name not in values:
                    return None
                del values[name]
                complete = False
            except ValueError as error:
                if complete:
                    self.problems.append(": ".join(filter(None, (key, " ".join(str(error).split())))))
                return None
        return None

    def _algorithm(self, value: Any, key: str) -> AlgorithmSettings | None:
        shipped = shipped_algorithms()
        if is_dataclass(value):  # an algorithm object or class, from Python
            return AlgorithmSettings.from_algorithm(cast("Algorithm", value))
        if not isinstance(value, Mapping):
            known = isinstance(value, str) and value in shipped
            fix = f". Write {key}.name = {format_value(value)}" if known else ""
            self._reject(value, key, f"table with a name{fix}")
            return None
        name = value.get("name", AlgorithmSettings.name)
        options = {option: value[option] for option in value if option != "name"}
        if isinstance(name, str) and name in shipped:
            values = self.section(options_class(name), options, key)
            return None if values is None else AlgorithmSettings(name=name, options=option_values(values))
        if isinstance(name, str) and (is_reference(name) or name in plugin_names()):
            return AlgorithmSettings(name=self.storable(name, f"{key}.name"), options=self.storable(options, key))
        names = [*shipped, *plugin_names()]
        hint = suggest(name[:60], names) if isinstance(name, str) else f"expected {', '.join(names)}"
        self.problems.append(f"{key}.name = {format_value(name)}: unknown name; {hint}. {OWN}")
        return None

    def value(self, hint: Any, value: Any, key: str) -> Any:
        """Return the value converted to the type; None, and a problem, if it does not fit."""
        if hint is Any:
            return self.storable(value, key)
        if takes_none(hint) and (value is None or value == "none"):
            return None
        parts = alternatives(hint)
        simple = next((part for part in parts if fits(split_range(part)[0], value)), None)
        if simple is not None:
            return self._simple(hint, simple, value, key)
        if len(parts) == 1:
            return self._compound(hint, parts[0], value, key)
        for part in parts:
            attempt = Reader()
            converted = attempt.value(part, value, key)
            if not attempt.problems:
                return converted
        return self._reject(value, key, describe_type(hint))

    def _simple(self, hint: Any, part: Any, value: Any, key: str) -> Any:
        if self.storable(value, key) is None:
            return None
        if not accepts(part, value):
            return self._reject(value, key, describe_type(hint))
        return float(value) if split_range(part)[0] is float else value

    def _compound(self, hint: Any, part: Any, value: Any, key: str) -> Any:
        origin = get_origin(part)
        if is_dataclass(part) and isinstance(value, Mapping):
            return self.section(part, value, key)
        if origin is tuple and isinstance(value, list | tuple):
            hints = element_types(part, len(value))
            if len(hints) == len(value):
                pairs = enumerate(zip(hints, value, strict=True))
                return tuple(self.value(inner, element, f"{key}[{index}]") for index, (inner, element) in pairs)
        if origin is Mapping and isinstance(value, Mapping):
            inner = get_args(part)[1]
            return {name: self.value(inner, value[name], dotted(key, name)) for name in self._names(value, key)}
        return self._reject(value, key, describe_type(hint))

    def storable(self, value: Any, key: str, depth: int = 0) -> Any:
        """Return a copy of a value that a TOML file can hold; None, and a problem, for any other, dates included."""
        if depth > MAX_DEPTH:
            self.problems.append(f"{key}: expected at most {MAX_DEPTH} levels of nesting.")
            return None
        if isinstance(value, Mapping):
            return {name: self.storable(value[name], dotted(key, name), depth + 1) for name in self._names(value, key)}
        if isinstance(value, list | tuple):
            return [self.storable(inner, f"{key}[{index}]", depth + 1) for index, inner in enumerate(value)]
        expected = _unmet_requirement(value)
        return value if expected is None else self._reject(value, key, expected)

    def _names(self, table: Mapping[Any, Any], key: str) -> list[str]:
        wrong = [name for name in table if not isinstance(name, str) or _unmet_requirement(name) is not None]
        self.problems += [f"{dotted(key, name)}: expected a key of valid Unicode." for name in wrong]
        return [name for name in table if name not in wrong]

    def _reject(self, value: Any, key: str, expected: str) -> None:
        self.problems.append(f"{key} = {format_value(value)}: expected {with_article(expected)}.")


def _unmet_requirement(value: object) -> str | None:
    """Return the requirement of TOML that a value does not meet, or None if a file can hold it."""
    if not isinstance(value, bool | int | float | str):
        return "string, number, true or false, list or table"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "integer of at most 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return "finite number"
    invalid = isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)
    return "string of valid Unicode" if invalid else None
