"""Output paths that a user names: only regular files are replaced, and only directories are written into."""

from __future__ import annotations

import stat
from pathlib import Path

from seeupo.errors import RunError

KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_output(path: Path, *, folder: bool = False) -> Path:
    """Return an output path at which there is nothing yet, or what may be replaced or written into.

    Every output path of a command or of a public function passes here before the work starts. A directory may be named
    by a link, because it is not replaced.

    Args:
        folder: Whether the output is a directory instead of a file.

    Raises:
        RunError: Something else is there, such as a device or a link, or the path cannot be examined.
    """
    expected = "a directory" if folder else "a file to replace"
    try:
        mode = path.stat(follow_symlinks=folder and path.exists()).st_mode
    except FileNotFoundError:
        return path
    except (OSError, ValueError) as error:  # ValueError: the path contains a null character
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path} cannot be written: {reason}; choose another path") from None
    if stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode):
        return path
    kind = KINDS.get(stat.S_IFMT(mode), "a special file")
    raise RunError(f"{path} is {kind}; expected {expected} or a new path. Choose another path, or remove it")
