"""What an episode may have written inside its sandbox, and how it is removed before the next one."""

from __future__ import annotations

import os
from pathlib import Path

SCRATCH = (Path("/tmp"), Path("/dev/shm"))
"""All that can be written to in a sandbox."""


def in_sandbox() -> bool:
    """Whether /tmp is a worker's own. Both signs are needed, because what is there will be removed."""
    return os.environ.get("HOME") == "/tmp" and Path("/proc/1/comm").read_text().strip() == "bwrap"


def mounted() -> list[Path]:
    """Where something is mounted: the environment's data and packages may be in places below /tmp."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [Path(line.split(" ")[1].encode().decode("unicode_escape")) for line in lines]


def clear(folder: Path) -> None:
    """Remove all that is in a folder but what is mounted there."""
    mounts = mounted()
    for entry in folder.iterdir():
        if entry in mounts:
            continue
        if any(mount.is_relative_to(entry) for mount in mounts):
            clear(entry)
        else:
            remove(entry)


def remove(entry: Path) -> None:
    """A file, or a folder with all that is in it, also where the permissions were taken away."""
    if entry.is_symlink() or not entry.is_dir():
        entry.unlink()
        return
    entry.chmod(0o700)
    for inner in entry.iterdir():
        remove(inner)
    entry.rmdir()
