"""Remove the files that an episode has written in its sandbox before the next one starts."""

from __future__ import annotations

import os
from pathlib import Path

SCRATCH = (Path("/tmp"), Path("/dev/shm"))
"""The only writable folders of a sandbox."""


def in_sandbox() -> bool:
    """Return whether /tmp belongs to a sandbox. Two signs are required, because its files will be deleted."""
    return os.environ.get("HOME") == "/tmp" and Path("/proc/1/comm").read_text().strip() == "bwrap"


def mounted() -> list[Path]:
    """Return all mount points: the environment's data and packages may be mounted below /tmp."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [Path(line.split(" ")[1].encode().decode("unicode_escape")) for line in lines]


def clear(folder: Path) -> None:
    """Remove everything in a folder except mounts."""
    mounts = mounted()
    for entry in folder.iterdir():
        if entry in mounts:
            continue
        if any(mount.is_relative_to(entry) for mount in mounts):
            clear(entry)
        else:
            remove(entry)


def remove(entry: Path) -> None:
    """Remove a file, or a folder with its content, even if its permissions were removed."""
    if entry.is_symlink() or not entry.is_dir():
        entry.unlink()
        return
    entry.chmod(0o700)
    for inner in entry.iterdir():
        remove(inner)
    entry.rmdir()
