"""Files that are there complete or not at all, whenever the process or the machine stops."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def partial_of(path: Path) -> Path:
    """Where a file is written before it gets its name: in the same folder, as a rename must not cross disks."""
    return path.with_name(path.name + ".partial")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a path to write to; what is there at the end takes the place of `path` at once, and is on the disk then.

    After an error the file is as it was before, and what was written is gone.
    """
    partial = partial_of(path)
    partial.unlink(missing_ok=True)  # of a process that was killed
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
    """Write a file as UTF-8, exactly as given."""
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def sync(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot do this for folders; they order renames themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
