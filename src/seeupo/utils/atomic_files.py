"""Atomic writes: a file or folder is complete or absent, even if the process or the machine stops."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PARENT_ATTEMPTS = 100
"""Number of attempts to make a folder whose new parent other processes remove again, as the check of a run does."""


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


@contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """Provide a temporary folder beside `path`, to be renamed to it when it is complete; otherwise it is removed.

    Missing parents are made. Folders that killed processes have left are removed; a process locks its own.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with suppress(OSError), _locked(left):
            shutil.rmtree(left)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    _make_folder(partial)
    try:
        with ExitStack() as stack:
            with suppress(OSError):  # on a file system without locks, nothing is removed either
                stack.enter_context(_locked(partial))
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_folder(path: Path) -> None:
    for attempt in range(PARENT_ATTEMPTS):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
            return
        except FileNotFoundError:
            if attempt == PARENT_ATTEMPTS - 1:
                raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder, at most until the process ends; raise OSError if another process has locked it or it is a link."""
    if os.name != "posix":
        raise OSError(errno.ENOTSUP, "folders cannot be locked")
    import fcntl

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, with its line endings unchanged."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def sync(path: Path) -> None:
    """Flush the content of a file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_tree(folder: Path) -> None:
    """Flush the content of a folder to the disk, with all folders in it."""
    for path in (folder, *folder.rglob("*")):
        sync(path) if path.is_file() else sync_folder(path)


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
