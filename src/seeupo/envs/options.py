"""Check an environment's options, which are the keyword arguments of its factory, and the rates of mistakes."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from seeupo.errors import EnvError, suggest

FIRST_TEST_SEED = 1_000_000
SIMPLE = (int, float, bool, str, type(None))


def check_options(factory: Any, options: Mapping[str, Any]) -> None:
    """Raise `EnvError` unless the options match the signature of the factory class.

    Values are checked if the annotation consists of int, float, bool, str, None and Literal.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    annotations = get_type_hints(factory.__init__)
    for name, value in options.items():
        if name not in parameters:
            raise EnvError(f"option {name}={value!r}: there is no option {name!r}; {suggest(name, list(parameters))}")
        accepted = choices(annotations.get(name, Any))
        if accepted is not None and not any(fits(value, choice) for choice in accepted):
            expected = " or ".join(describe(choice) for choice in accepted)
            raise EnvError(f"option {name}={value!r}: expected {expected}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in options:
            raise EnvError(f"option {name!r} is required")


def check_range(option: str, value: float, low: float, high: float | None = None, *, why: str = "") -> None:
    """Raise `EnvError` unless the value of an option is at least `low` and at most `high`."""
    if not (low <= value and (high is None or value <= high)):
        expected = f"at least {low}" if high is None else f"a number from {low} to {high}"
        raise EnvError(f"option {option}={value!r}: expected {expected}{why}")


def seed_ranges(*, train: int, test: int) -> dict[str, range]:
    """Return the seeds of the splits of an environment whose tasks are seeds; no seed is in both."""
    check_range("train", train, 0, FIRST_TEST_SEED)
    check_range("test", test, 0, FIRST_TEST_SEED)
    return {"train": range(train), "test": range(FIRST_TEST_SEED, FIRST_TEST_SEED + test)}


def mistake_rates(rates: Mapping[str, float], defaults: Mapping[str, float]) -> dict[str, float]:
    """Return the probabilities of a noisy expert's mistakes, completed by the defaults."""
    for name, rate in rates.items():
        if name not in defaults:
            raise EnvError(f"there is no mistake {name!r}; {suggest(name, list(defaults))}")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise EnvError(f"{name} is {rate!r}; expected a number in [0, 1]")
    return {**defaults, **rates}


def choices(annotation: Any) -> tuple[Any, ...] | None:
    """Return the types and literals that an annotation accepts; None if it cannot be checked."""
    if annotation in SIMPLE:
        return (annotation,)
    if get_origin(annotation) is Literal:
        return tuple(Literal[value] for value in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [choices(part) for part in get_args(annotation)]
        return None if None in parts else tuple(choice for part in parts if part for choice in part)
    return None


def fits(value: Any, choice: Any) -> bool:
    if get_origin(choice) is Literal:
        (expected,) = get_args(choice)
        return type(value) is type(expected) and value == expected
    if choice is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, choice) and (choice is bool or not isinstance(value, bool))


def describe(choice: Any) -> str:
    if get_origin(choice) is Literal:
        return repr(get_args(choice)[0])
    return "None" if choice is type(None) else choice.__name__
