"""Parsed calls are made on the official backends. Only documented functions can be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seeupo.envs.bfcl import official
from seeupo.envs.bfcl.calls import Call, Value, canonical

MAX_POWER_BITS = 100_000  # beyond some 14,000 the official result is an error: too many digits to print
MAX_PRECISION = 10_000
MAX_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call led to.

    Attributes:
        text: the official result, or the official form of an error.
        checked: what the official checker is given: the canonical call, or the text itself as a literal where nothing
            was called. A literal gives the same result there, and counts as a call as it does officially.
    """

    text: str
    checked: str


class Backends:
    """The functions of one episode's backends, in the state that the calls so far have led to."""

    def __init__(self, entry: official.Entry) -> None:
        held_out = [function for functions in entry.get("missed_function", {}).values() for function in functions]
        self._parameters = {
            function["name"]: tuple(function["parameters"]["properties"])
            for function in [*entry["function"], *held_out]
        }
        # Where two classes have a function of the same name, the later one has it, as officially.
        self._owners = {
            name: backend for backend in official.backends(entry) for name in self._parameters if hasattr(backend, name)
        }

    def named(self, call: Call) -> Call:
        """The call with names for its positional arguments, in the order of the documentation."""
        if not call.positional:
            return call
        names = self._parameters[call.name]
        if len(call.positional) > len(names):
            raise TypeError(f"{call.name}() takes {len(names)} arguments, but {len(call.positional)} were given")
        given = dict(zip(names, call.positional, strict=False))
        if twice := given.keys() & call.arguments.keys():
            raise TypeError(f"{call.name}() got multiple values for argument {min(twice)!r}")
        return Call(call.name, {**given, **call.arguments})

    def execute(self, call: Call) -> Outcome:
        """Make the call. Whatever goes wrong is its result, as officially."""
        owner = self._owners.get(call.name)
        if owner is None:
            return _refused(f"name {call.name!r} is not defined")
        try:
            call = self.named(call)
        except TypeError as error:
            return _refused(str(error))
        if why := _too_expensive(owner, call.name, call.arguments):
            return _refused(why)
        checked = canonical(call)  # before the call: backends keep and change what they are given
        try:
            text = _as_text(getattr(owner, call.name)(**call.arguments))
        except Exception as error:  # the official executor shows any of them to the model
            text = _error(error)
        return Outcome(text, checked)


def _refused(why: str) -> Outcome:
    text = _error(why)
    return Outcome(text, repr(text))


def _error(why: object) -> str:
    return f"Error during execution: {why}"


def _as_text(result: Any) -> str:
    """A result in the official form."""
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError, RecursionError):
            return str(result)
    return str(result)


def _too_expensive(owner: Any, name: str, arguments: Mapping[str, Value]) -> str | None:
    """Why a call would take forever or all memory, if it would. None of these functions changes any state."""
    match name:
        case "power":
            base, exponent = arguments.get("base"), arguments.get("exponent")
            if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_POWER_BITS:
                return "the result has too many digits"
        case "round_number":
            places = arguments.get("decimal_places")
            if isinstance(places, int) and abs(places) > MAX_PRECISION:
                return f"decimal_places must be between -{MAX_PRECISION} and {MAX_PRECISION}"
        case "logarithm" | "square_root":
            if _number(arguments.get("precision")) > MAX_PRECISION:
                return f"precision must be at most {MAX_PRECISION}"
        case "find" | "du":
            if _more_files_than(MAX_FILES, owner.root):
                return "too many files and directories"
    return None


def _number(value: Value) -> float:
    """A number that the backends would take the value for; texts count, as they are converted."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _more_files_than(limit: int, root: Any) -> bool:
    """Copies share their contents, so that a few calls can make a tree of endless paths."""
    waiting, seen = [root], 0
    while waiting and seen <= limit:
        contents = getattr(waiting.pop(), "contents", {})
        seen += len(contents)
        waiting.extend(contents.values())
    return seen > limit
