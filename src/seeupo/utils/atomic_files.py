"""Atomic file writes: a file is complete or absent, even if the process or the machine stops."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def partial_of(path: Path) -> Path:
    """Return the temporary path of a file: in the same directory, because a rename must not cross disks."""
    return path.with_name(path.name + ".partial")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Provide a temporary path to write to, which replaces `path` atomically and durably at the end.

    After an error `path` is unchanged, and the temporary file is removed.
    """
    partial = partial_of(path)
    partial.unlink(missing_ok=True)  # left by a process that was killed
    try:
        yield partial
        sync(partial)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, with its line endings unchanged."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def sync(path: Path) -> None:
    """Flush the content of a file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the entries of a directory to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems do not support this for directories; they order renames themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
