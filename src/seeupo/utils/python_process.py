"""Start Python so that it imports nothing from the current directory, whose files may come from strangers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment variable with which Python does not import from the current directory."""


def python_command(*arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command of an interpreter, this one by default, that does not import from the current directory."""
    return [python, "-P", *arguments]


def safe_environment() -> dict[str, str]:
    """Return the environment variables for a Python process whose own children do not import from there either."""
    return {**os.environ, **SAFE_PATH}


@contextmanager
def safe_children() -> Iterator[None]:
    """Start all children of this process so, also those that other packages start."""
    before = {name: os.environ.get(name) for name in SAFE_PATH}
    os.environ.update(SAFE_PATH)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
