"""Temporary folders of workers, which the next start removes if their owner was killed.

The owner of a folder holds a lock on it, which the kernel releases when the process is gone, however it ended.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

PREFIX = "seeupo-worker-"


@dataclass
class TemporaryFolder:
    """A temporary folder and the descriptor that holds its lock; None after its removal."""

    path: Path
    lock: int | None

    @classmethod
    def create(cls) -> Self:
        """Create a folder. The first call also removes those that killed processes left."""
        remove_leftovers(tempfile.gettempdir())
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
            # Before it is locked, another process may take it for a leftover and remove it.
            try:
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            lock_folder(lock)
            if path.exists():
                return cls(path, lock)
            os.close(lock)

    def remove(self) -> None:
        """Remove the folder; idempotent."""
        if self.lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)
            self.lock = None


@cache
def remove_leftovers(parent: str) -> None:
    """Remove the folders of processes that are gone, once per process."""
    for path in Path(parent).glob(f"{PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # another user's, or just removed
            continue
        try:
            if os.fstat(lock).st_uid == os.getuid():
                lock_folder(lock, wait=False)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its owner lives
            pass
        finally:
            os.close(lock)


def lock_folder(descriptor: int, *, wait: bool = True) -> None:
    """Lock an open folder; `OSError` if another process holds the lock and we do not wait."""
    import fcntl  # Unix only

    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
