"""Errors that the user can fix, and suggestions for names that do not exist.

Every message says what is wrong, what is expected and what to do. The command line prints it as one line, without a
traceback. An episode that is lost to the infrastructure is a `seeupo.envs.failures.EnvFailure` instead.

Only the standard library is imported here, because environment workers import this module.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

MAX_SUGGESTED = 50
"""Number of names that a hint lists."""
DOUBLE_MARK = re.compile(r"(?:(?<=[\w'\")\]]\.)|(?<=[?!]))\.(?=\s|$)")
"""A period after another mark that ends a sentence; ".." in a path and "..." are none."""


class UserError(Exception):
    """An error that the user can fix; the message says how. Each argument is one line of it."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The message by lines."""
        return tuple(without_double_marks(str(line)) for line in self.args)

    def __str__(self) -> str:
        return "\n".join(self.lines)


class ConfigError(UserError):
    """A recipe cannot be read or written.

    Attributes:
        problems: One line per problem: the key, its value and what is accepted.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(map(without_double_marks, problems))
        super().__init__(self.problems)

    @property
    def lines(self) -> tuple[str, ...]:
        return self.problems


class TrainingError(UserError):
    """Training cannot start or continue as requested."""


class EngineLost(UserError):
    """Processes that hold the trained weights have died or do not answer; only a checkpoint brings them back."""


class EvaluationError(UserError):
    """An evaluation cannot be run, read or compared as requested."""


class RunError(UserError):
    """A run directory or another output cannot be created, opened, locked or written."""


class CheckpointError(UserError):
    """A checkpoint cannot be written or read."""


class TrajectoryFileError(UserError):
    """A file cannot be read as trajectories."""


class DemonstrationFileError(UserError):
    """A file cannot be read as demonstrations."""


class TrackerError(UserError):
    """A tracker cannot be started."""


class ModelError(UserError):
    """A model cannot be downloaded or loaded."""


class EndpointError(UserError):
    """A model server cannot be reached, or keeps answering with something that is not a completion."""


class EnvError(UserError):
    """An environment cannot be used as requested: its name or an option is invalid, or it is not installed."""


class EnvUnavailable(EnvError):
    """An environment cannot be used on this machine yet: its packages, its data or a sandbox are missing."""


def suggest(name: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown `name`: the closest known one, or all of them, up to a limit."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    rest = len(known) - MAX_SUGGESTED
    more = f", ... and {rest} more" if rest > 0 else ""
    return f"available: {', '.join(known[:MAX_SUGGESTED]) or 'none'}{more}"


def without_double_marks(line: str) -> str:
    """Return a line without the period that a message adds to a hint or to another error that ends with a mark."""
    return DOUBLE_MARK.sub("", line)


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error's message, or the name of its class."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
