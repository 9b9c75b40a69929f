"""Read the final state of an episode: the statements that changed the apps' databases, as AppWorld's engine saves them.

Model code runs in the process that writes these files, so they may contain anything. They are read without following
links or blocking, up to a size limit. Only `scorer.py` uses them, and it checks every statement.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

LARGEST_STATE = 12 * 2**20
MOST_FILES = 64


class UnreadableState(Exception):
    """The saved state is missing or cannot be read."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """Lines of each app's list of changes."""

    lines: dict[str, list[str]]

    def since(self, earlier: SavedState) -> dict[str, list[str]]:
        """Return the lines added since an earlier state. An episode starts with the changes that set up its task."""
        added = {app: lines[len(earlier.lines.get(app, [])) :] for app, lines in self.lines.items()}
        return {app: lines for app, lines in added.items() if lines}


def read_state(output: Path) -> SavedState:
    """Return the state in an engine's output folder."""
    try:
        names = sorted(path.name for path in (output / "dbs").iterdir() if path.suffix == ".jsonl")
    except OSError as error:
        raise UnreadableState(str(error)) from None
    if len(names) > MOST_FILES:
        raise UnreadableState(f"{len(names)} databases")
    lines: dict[str, list[str]] = {}
    size = 0
    for name in names:
        text = read_regular_file(output / "dbs" / name, LARGEST_STATE - size)
        size += len(text)
        lines[name.removesuffix(".jsonl")] = [line for line in text.split("\n") if line.strip()]
    return SavedState(lines)


def read_regular_file(path: Path, most: int) -> str:
    """Return the text of a regular file of at most `most` bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableState(f"{path.name} is not a file")
            content = file.read(most + 1)
    except OSError as error:
        raise UnreadableState(str(error)) from None
    if len(content) > most:
        raise UnreadableState(f"the saved state has more than {LARGEST_STATE} bytes")
    return content.decode(errors="replace")
