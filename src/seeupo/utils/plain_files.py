"""Open files in directories that came from elsewhere: no symbolic links, pipes or devices, and a limit of size."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from seeupo.errors import RunError

MAX_BYTES = 256_000_000
"""Limit for files that are read as a whole: tables, metrics and results."""


def open_plain(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a regular file for reading, or to append to it; it is then created if it is missing.

    Raises:
        OSError: The file cannot be opened, is a symbolic link, or may have no end, such as a pipe.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT if append else os.O_RDONLY
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its other end.
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path)) from None
        raise error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(handle, "ab" if append else "rb")


def refuse_links(paths: Iterable[Path], *, place: str) -> None:
    """Raise if a path is a symbolic link, through which a command would read or change other files."""
    for path in paths:
        if path.is_symlink():
            raise RunError(
                f"{path} is a symbolic link, which is not followed in {place}; replace it with the file or directory "
                "itself"
            )


def read_plain(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: As `open_plain`, or the file is larger than `max_bytes`.
    """
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {max_bytes / 1e6:g} MB", str(path))
        return file.read(max_bytes)
