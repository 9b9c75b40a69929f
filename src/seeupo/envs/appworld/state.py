"""What an episode leaves behind: the statements that changed the apps' databases, as AppWorld's engine saves them.

Model code runs in the process that writes these files, so they may hold anything. They are read without following
links or waiting, up to a size, and used by nobody but `scorer.py`, which checks every statement.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

LARGEST_STATE = 12 * 2**20
MOST_FILES = 64


class Unreadable(Exception):
    """There is no saved state, or none that could be read."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """The lines of each app's list of changes."""

    lines: dict[str, list[str]]

    def since(self, earlier: SavedState) -> dict[str, list[str]]:
        """What was added to the lists. An episode starts with the changes that set its task up."""
        added = {app: lines[len(earlier.lines.get(app, [])) :] for app, lines in self.lines.items()}
        return {app: lines for app, lines in added.items() if lines}


def read_state(output: Path) -> SavedState:
    """The state in an engine's output folder."""
    try:
        names = sorted(path.name for path in (output / "dbs").iterdir() if path.suffix == ".jsonl")
    except OSError as error:
        raise Unreadable(str(error)) from None
    if len(names) > MOST_FILES:
        raise Unreadable(f"{len(names)} databases")
    lines: dict[str, list[str]] = {}
    size = 0
    for name in names:
        text = read_regular_file(output / "dbs" / name, LARGEST_STATE - size)
        size += len(text)
        lines[name.removesuffix(".jsonl")] = [line for line in text.split("\n") if line.strip()]
    return SavedState(lines)


def read_regular_file(path: Path, most: int) -> str:
    """The text of a file that is a file, and not larger than that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreadable(f"{path.name} is not a file")
            content = file.read(most + 1)
    except OSError as error:
        raise Unreadable(str(error)) from None
    if len(content) > most:
        raise Unreadable(f"the saved state has more than {LARGEST_STATE} bytes")
    return content.decode(errors="replace")
