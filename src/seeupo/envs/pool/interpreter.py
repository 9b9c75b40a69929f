"""Find the files of a Python interpreter that a sandboxed worker must see, and no others.

Interpreters often lie in the user's home (pyenv, uv, conda, ~/venvs) or beside a project's files. Of their directories
only the parts that belong to Python are shown.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SYSTEM_FOLDERS = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
"""Folders that every worker sees."""
PARTS = ("bin", "lib", "lib64", "pyvenv.cfg", "share/zoneinfo")
"""Files of an installation or virtual environment that its interpreter reads."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Files of an interpreter, except the system's.

    Attributes:
        mounts: Directories and files to show.
        links: Symbolic links outside of them on the way from the interpreter's path to its file, with their targets.
    """

    mounts: tuple[Path, ...]
    links: dict[Path, Path]


def find_runtime(python: Path) -> Runtime:
    """Return what an interpreter needs: its virtual environment, its base installation and the links between them."""
    hops = follow(python)
    prefixes = {hop.parent.parent for hop in (*hops, Path(os.path.realpath(python)))}
    if (base := base_of(python.parent.parent)) is not None:
        prefixes.add(base)
    mounts = {
        prefix / part
        for prefix in prefixes
        if is_installation(prefix) and not is_system(prefix)
        for part in PARTS
        if (prefix / part).exists()
    }
    links = {
        hop: hop.readlink()
        for hop in hops
        if hop.is_symlink() and not is_system(hop) and not any(hop.is_relative_to(mount) for mount in mounts)
    }
    return Runtime(tuple(sorted(mounts)), links)


def follow(python: Path) -> list[Path]:
    """Return the path of an interpreter and the paths that its symbolic links lead to, one after the other."""
    hops = [python]
    while hops[-1].is_symlink():
        after = Path(os.path.normpath(hops[-1].parent / hops[-1].readlink()))
        if after in hops:  # links in a circle; starting the interpreter reports it
            break
        hops.append(after)
    return hops


def base_of(venv: Path) -> Path | None:
    """Return the installation that a virtual environment was made from; None for others."""
    try:
        lines = (venv / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return None
    settings = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    return Path(settings["home"]).parent if settings.get("home") else None


def is_installation(prefix: Path) -> bool:
    """Return whether a directory holds a Python. Others, such as ~/.local, may only hold links to one."""
    return (prefix / "pyvenv.cfg").is_file() or any(prefix.glob("lib*/python3*/os.py"))


def is_system(path: Path) -> bool:
    """Return whether every worker sees a path, or whether it is the root, whose parts are the system's folders."""
    return path == Path("/") or any(path.is_relative_to(folder) for folder in SYSTEM_FOLDERS)
