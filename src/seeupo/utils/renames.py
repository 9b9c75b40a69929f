"""Errors for arguments under their former names."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def renamed_arguments(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function refuse the former names of its keyword arguments with an error that gives the current ones."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for old, new in names.items():
                if old in kwargs:
                    raise TypeError(f"{function.__name__}(): the argument {old!r} was renamed to {new!r}")
            return function(*args, **kwargs)

        return checked

    return decorate
