"""Execute parsed calls on the official backends. Only documented functions can be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seeupo.envs.bfcl import official
from seeupo.envs.bfcl.calls import Call, Value, canonical

MAX_POWER_BITS = 100_000  # beyond about 14,000 the official result is an error: too many digits to print
MAX_PRECISION = 10_000
MAX_FILES = 10_000


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of a call.

    Attributes:
        text: Official result, or the official form of an error.
        checked: Input of the official checker: the canonical call, or the text as a literal if nothing was called. A
            literal evaluates to the same result and, as officially, counts as a call.
    """

    text: str
    checked: str


class Backends:
    """Holds the backends of one episode and executes calls on them."""

    def __init__(self, entry: official.Entry) -> None:
        held_out = [function for functions in entry.get("missed_function", {}).values() for function in functions]
        self._parameters = {
            function["name"]: tuple(function["parameters"]["properties"])
            for function in [*entry["function"], *held_out]
        }
        # If two classes have a function of the same name, the later class wins, as officially.
        self._owners = {
            name: backend for backend in official.backends(entry) for name in self._parameters if hasattr(backend, name)
        }

    def named(self, call: Call) -> Call:
        """Return the call with its positional arguments named, in the order of the documentation."""
        if not call.positional:
            return call
        names = self._parameters[call.name]
        if len(call.positional) > len(names):
            raise TypeError(f"{call.name}() takes {len(names)} arguments, but {len(call.positional)} were given")
        given = dict(zip(names, call.positional, strict=False))
        if repeated := given.keys() & call.arguments.keys():
            raise TypeError(f"{call.name}() got multiple values for argument {min(repeated)!r}")
        return Call(call.name, {**given, **call.arguments})

    def execute(self, call: Call) -> CallResult:
        """Execute the call. As officially, an error is a result."""
        owner = self._owners.get(call.name)
        if owner is None:
            return _refused(f"name {call.name!r} is not defined")
        try:
            call = self.named(call)
        except TypeError as error:
            return _refused(str(error))
        if why := _too_expensive(owner, call.name, call.arguments):
            return _refused(why)
        checked = canonical(call)  # before the call: backends keep and change their arguments
        try:
            text = _as_text(getattr(owner, call.name)(**call.arguments))
        except Exception as error:  # the official executor shows any of them to the model
            text = _error(error)
        return CallResult(text, checked)


def _refused(why: str) -> CallResult:
    text = _error(why)
    return CallResult(text, repr(text))


def _error(why: object) -> str:
    return f"Error during execution: {why}"


def _as_text(result: Any) -> str:
    """Return a result in the official form."""
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError, RecursionError):
            return str(result)
    return str(result)


def _too_expensive(owner: Any, name: str, arguments: Mapping[str, Value]) -> str | None:
    """Return why a call would take too much time or memory, or None. None of these functions changes any state."""
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
    """Return the value as the number that the backends would convert it to, or 0."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _more_files_than(limit: int, root: Any) -> bool:
    """Return whether a tree has too many files; copies share contents, so a few calls can create endless paths."""
    waiting, seen = [root], 0
    while waiting and seen <= limit:
        contents = getattr(waiting.pop(), "contents", {})
        seen += len(contents)
        waiting.extend(contents.values())
    return seen > limit
