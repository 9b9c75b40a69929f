"""The contract of environments, checked where their code runs.

docs/environments/custom-environments.md lists what is checked, in the same words. Only the standard library is
imported here, because environment workers import this module.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, get_args, get_type_hints

from seeupo.types import Message, Role, StepResult, Task, Tool, ToolCall

FIELDS: dict[type, dict[str, Any]] = {
    kind: get_type_hints(kind) for kind in (Task, StepResult, Message, ToolCall, Tool)
}
"""Annotations of the fields of each class."""


class ContractError(Exception):
    """An environment broke the contract: the message says what its method must return and what it returned."""


@dataclass(frozen=True)
class Contract:
    """Checks of one method's answers.

    Attributes:
        name: Name of the method, as in the contract.
        function: The method itself; errors end with the file and line where it is defined.
    """

    name: str
    function: object

    def broken(self, sentence: str) -> ContractError:
        return ContractError(f"{sentence}{place_of(self.function)}")

    def returns(self, value: Any, accepted: bool, expected: str) -> None:
        """Raise unless the method's answer is accepted."""
        if not accepted:
            shown = type_name(value) if isinstance(value, str) else describe(value)
            raise self.broken(f"{self.name} must return {expected}, got {shown}")

    def fields(self, value: Any, kind: type) -> None:
        """Raise unless the fields of an object, and of the objects in them, fit the annotations of its class."""
        for name, annotation in FIELDS[kind].items():
            content = getattr(value, name)
            accepts, expected, item_kind = FIELD_CHECKS[annotation]
            if not accepts(content):
                raise self.wrong_field(kind, name, content, expected)
            if item_kind is not None:
                for item in content or ():
                    if not isinstance(item, item_kind):
                        raise self.wrong_field(kind, name, item, expected)
                    self.fields(item, item_kind)

    def wrong_field(self, kind: type, name: str, content: Any, expected: str) -> ContractError:
        field = f"a {kind.__name__} with {name} {describe(content)}"
        expected = "a JSON schema" if name == "parameters" else expected
        return self.broken(f"{self.name} returned {field}; it must be {expected}")

    def splits(self, value: Any) -> list[str]:
        if not is_sequence_of(value, str) or not value:
            raise self.broken(f'splits must be names such as ("train", "test"), got {describe(value)}')
        return list(value)

    def separate_step_rewards(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.broken(f"separate_step_rewards must be True or False, got {describe(value)}")
        return value

    def tasks(self, value: Any) -> list[Task]:
        """Return a split's tasks: `Task` objects with fields of the right types and unique ids."""
        self.returns(value, isinstance(value, Sequence) and not isinstance(value, str), "a sequence of Task")
        ids: set[str] = set()
        for task in value:
            self.returns(task, isinstance(task, Task), "a sequence of Task")
            self.fields(task, Task)
            if task.id in ids:
                raise self.broken(f"{self.name} must return unique task ids, got {task.id!r} twice")
            ids.add(task.id)
        return list(value)

    def environment(self, value: Any, methods: Sequence[str]) -> Any:
        missing = [name for name in methods if not callable(getattr(value, name, None))]
        if missing:
            expected = f"an environment with {', '.join(methods[:-1])} and {methods[-1]}"
            without = " and ".join(missing)
            raise self.broken(f"{self.name} must return {expected}, got {describe(value)} without {without}")
        return value

    def result(self, value: Any) -> StepResult:
        """Return the answer of `reset` or `step`."""
        if type(value) is tuple and len(value) in (4, 5):
            raise self.broken(
                f"{self.name} must return StepResult, got tuple of {len(value)} items; for an environment with "
                "Gymnasium's reset and step use the adapter: docs/environments/gymnasium.md"
            )
        self.returns(value, isinstance(value, StepResult), "StepResult")
        self.fields(value, StepResult)
        result: StepResult = replace(value, reward=float(value.reward))
        return result

    def score(self, value: Any) -> float:
        self.returns(value, is_finite(value) and 0 <= value <= 1, "a number from 0 to 1")
        return float(value)

    def expert(self, value: Any) -> Callable[[StepResult], str] | None:
        self.returns(value, value is None or callable(value), "a function or None")
        expert: Callable[[StepResult], str] | None = value
        return expert

    def action(self, value: Any) -> str:
        self.returns(value, isinstance(value, str), "an expert that returns str")
        return str(value)

    def words(self, value: Any) -> list[str]:
        self.returns(value, is_sequence_of(value, str), "a sequence of str")
        return list(value)

    def json(self, value: Any) -> Any:
        self.returns(value, is_json(value), "JSON")
        return value


def describe(value: Any) -> str:
    """Return a number or short text as it is written, and the type of anything else."""
    if value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 40):
        return repr(value)
    return type_name(value)


def type_name(value: Any) -> str:
    kind = type(value)
    known = kind.__module__ in ("builtins", "seeupo.types")
    return kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"


def place_of(function: object) -> str:
    """Return where a function is defined, such as " (my_env.py:12)"; empty if it has no source file."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)  # type: ignore[arg-type]
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"


def is_sequence_of(value: Any, kind: type) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and all(isinstance(item, kind) for item in value)


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number, NumPy's included; a bool is none."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def is_json_table(value: Any) -> bool:
    return isinstance(value, Mapping) and is_json(dict(value))


def is_tuple(value: Any) -> bool:
    return isinstance(value, list | tuple)


FIELD_CHECKS: dict[Any, tuple[Callable[[Any], bool], str, type | None]] = {
    str: (lambda value: isinstance(value, str), "str", None),
    str | None: (lambda value: isinstance(value, str | None), "str or None", None),
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), "int", None),
    bool: (lambda value: isinstance(value, bool), "bool", None),
    float: (is_finite, "a finite number", None),
    Role: (lambda value: value in get_args(Role), f"one of {', '.join(get_args(Role))}", None),
    Mapping[str, Any]: (is_json_table, "a table of JSON values", None),
    tuple[Message, ...]: (is_tuple, "a tuple of Message", Message),
    tuple[ToolCall, ...]: (is_tuple, "a tuple of ToolCall", ToolCall),
    tuple[Tool, ...] | None: (lambda value: value is None or is_tuple(value), "a tuple of Tool, or None", Tool),
}
"""For each annotation of a field: its check, its description, and the class of the objects in it."""
