"""Checks of options. Messages start with the option's name, show its value, and state what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real


class OptionError(ValueError):
    """An option has a value that is not accepted.

    Attributes:
        option: Name of the option.
        value: Rejected value.
        expected: Accepted values, as a noun phrase.
    """

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(option, value, expected)
        self.option, self.value, self.expected = option, value, expected

    def __str__(self) -> str:
        return f"{self.option} = {self.value!r}: expected {self.expected}"


def check_choice(name: str, value: object, accepted: Sequence[object]) -> None:
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in accepted):
        raise OptionError(name, value, f"one of {', '.join(map(repr, accepted))}")


def check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionError(name, value, "a number")


def check_unit_interval(name: str, value: float) -> None:
    check_number(name, value)
    if not 0 <= value <= 1:
        raise OptionError(name, value, "a number in [0, 1]")


def check_count(name: str, value: object, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < lowest:
        raise OptionError(name, value, f"an integer >= {lowest}")


def check_at_least(name: str, value: float, lowest: float) -> None:
    check_number(name, value)
    if not lowest <= value < float("inf"):
        raise OptionError(name, value, f"a finite number >= {lowest}")
