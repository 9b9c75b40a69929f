"""Show exceptions to the author of an environment: frames of their code, not of this package.

Only the standard library is imported here, because environment workers import this module.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import seeupo

OWN_CODE = Path(seeupo.__file__).parent
LONGEST = 4000
"""Number of characters of a traceback that are kept, from its end."""


def explain_exception(error: BaseException) -> str:
    """Return "Type: message (file:line)" and, in further lines, the traceback without the frames of this package.

    If all frames belong to this package, as in a built-in environment, they are kept.
    """
    shown = traceback.TracebackException.from_exception(error)
    message = str(shown).partition("\n")[0]
    if isinstance(error, SyntaxError):  # its message has the place, and all frames belong to the import
        place, shown.stack = "", traceback.StackSummary()
    else:
        place = _hide_own_frames(_chain(shown))
    trace = "".join(shown.format())[-LONGEST:].rstrip()
    return f"{type(error).__name__}{': ' if message else ''}{message}{place}\n{trace}"


def is_installed(path: Path) -> bool:
    """Return whether a path belongs to the interpreter or its packages."""
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    return "site-packages" in path.parts or any(path.resolve().is_relative_to(prefix) for prefix in prefixes)


def _chain(shown: traceback.TracebackException) -> list[traceback.TracebackException]:
    """Return an exception and those that led to it, the latest first."""
    chain = [shown]
    for error in chain:
        chain += [cause for cause in (error.__cause__, error.__context__) if cause is not None and cause not in chain]
    return chain


def _hide_own_frames(chain: list[traceback.TracebackException]) -> str:
    """Remove the frames of this package if others remain, and return the place of the latest in the user's files."""
    stacks = [[frame for frame in error.stack if not _is_own(frame)] for error in chain]
    frames = next(filter(None, stacks), None)
    if frames is None:
        return ""
    for error, stack in zip(chain, stacks, strict=True):
        error.stack = traceback.StackSummary.from_list(stack)
    latest = next((frame for frame in reversed(frames) if not is_installed(Path(frame.filename))), frames[-1])
    return f" ({latest.filename}:{latest.lineno})"


def _is_own(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith("<frozen importlib") or Path(frame.filename).is_relative_to(OWN_CODE)
