"""Decorators that mark functions as usable by name, as in `reward = "rewards.py:exact"`.

A recipe may name only what declares itself; otherwise it could name any function of any module, such as
`subprocess.getoutput`. Classes need no mark, because they are recognized by their methods.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__seeupo_role__"


class Role(StrEnum):
    """Purpose of code that is named in an option."""

    FACTORY = "environment factory"
    REWARD = "reward function"
    ENV = "environment"
    EXPERT = "expert"
    ALGORITHM = "training algorithm"
    PROGRAM = "agent program"


METHODS = {
    Role.FACTORY: ("tasks", "make"),
    Role.ENV: ("reset", "step"),
    Role.ALGORITHM: ("needs", "update"),
}
"""Attributes by which the classes of a role are recognized."""
DECORATORS = {
    Role.REWARD: "reward_function",
    Role.ENV: "env_maker",
    Role.EXPERT: "expert_maker",
    Role.PROGRAM: "agent_program",
}


def reward_function(function: F) -> F:
    """Declare a reward function.

    `reward(completion, row) -> float` is one of the environment `dataset`, `reward(trajectory) -> float` one of
    `collect.reward`.
    """
    return _mark(function, Role.REWARD)


def env_maker(function: F) -> F:
    """Declare a function that returns an environment with Gymnasium's `reset` and `step`."""
    return _mark(function, Role.ENV)


def expert_maker(function: F) -> F:
    """Declare a function `expert(task)` that returns an expert of the environment `gymnasium`."""
    return _mark(function, Role.EXPERT)


def agent_program(function: F) -> F:
    """Declare an agent program.

    `solve(task, client)` calls the policy through `client`, an OpenAI client (an asynchronous one for a coroutine
    function), and returns the score, or a mapping with the `score` and the `rewards` of its calls.
    """
    return _mark(function, Role.PROGRAM)


def declares(code: Any, role: Role) -> bool:
    """Return whether an object may be used in a role: it was marked, or it is a class with the role's methods."""
    if isinstance(code, type):
        return role in METHODS and all(hasattr(code, name) for name in METHODS[role])
    return callable(code) and getattr(code, MARK, None) == role


def requirement(role: Role) -> str:
    """Return what an object must be to have a role, for error messages."""
    options = []
    if role in METHODS:
        options.append(f"a class with {', '.join(METHODS[role])}")
    if role in DECORATORS:
        options.append(f"a function marked with @seeupo.{DECORATORS[role]}")
    return " or ".join(options)


def _mark(function: F, role: Role) -> F:
    setattr(function, MARK, role)
    return function
