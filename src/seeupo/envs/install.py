"""Install environments: one virtual environment each, with pinned packages, in the cache folder.

The trainer's own environment stays free of benchmark packages. After the installation no network is needed.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from seeupo.envs.references import packages_for
from seeupo.envs.registry import EnvSpec
from seeupo.errors import EnvError, EnvUnavailable
from seeupo.utils.cache import cache_folder, make_cache_folder

PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)")
READY = "ready.json"
PREPARE = """
import importlib, pathlib, sys
sys.path[:0] = [sys.argv[3]]
module, _, name = sys.argv[1].partition(":")
getattr(importlib.import_module(module), name)(pathlib.Path(sys.argv[2]))
"""


def folder_of(spec: EnvSpec) -> Path:
    """Return the folder of an environment's interpreter and data."""
    return cache_folder() / "envs" / spec.name


def installed(spec: EnvSpec) -> bool:
    """Return whether the environment is installed in exactly the versions that the spec requires."""
    if not needs_installation(spec):
        return True
    try:
        record = json.loads((folder_of(spec) / READY).read_text())
    except (OSError, ValueError):
        return False
    return bool(record.get("asked") == requested(spec)) and (not spec.requirements or python_of(spec).exists())


def interpreter(spec: EnvSpec) -> Path:
    """Return the environment's own interpreter, or the trainer's if the spec has no requirements."""
    if not installed(spec):
        raise EnvUnavailable(
            f"{spec.name} is not installed in the required versions; run: seeupo envs install {spec.name}"
        )
    return python_of(spec) if spec.requirements else Path(sys.executable)


def install(spec: EnvSpec, *, report: Callable[[str], None] = lambda _: None) -> Path:
    """Install the environment unless it is installed, and return its folder.

    The record is written last, so an interrupted installation does not count as installed. A lock keeps two processes
    from installing the same environment at once.
    """
    for requirement in spec.requirements:
        if not PIN.fullmatch(requirement):
            raise EnvError(f"{spec.name}: requirement {requirement!r} is not pinned; write it as name==version")
    folder = folder_of(spec)
    make_cache_folder(folder.parent)
    with FileLock(folder.with_name(f".{spec.name}.lock")):
        if installed(spec):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if spec.requirements:
            report(f"creating a virtual environment in {folder}")
            run(
                [sys.executable, "-m", "venv", str(folder / "venv")],
                f"{spec.name}: the virtual environment could not be created",
            )
            report(f"installing {', '.join(spec.requirements)}")
            python = str(python_of(spec))
            pip = [python, "-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check", "--quiet"]
            problem = f"{spec.name}: pip could not install its packages; is the package index reachable?"
            run([*pip, *spec.requirements], problem)
        if spec.prepare is not None:
            report("preparing the environment's files")
            prepare(spec, spec.prepare)
        record = {"asked": requested(spec), "python": platform.python_version()}
        (folder / READY).write_text(json.dumps(record, indent=2) + "\n")
    return folder


def prepare(spec: EnvSpec, hook: str) -> None:
    """Call the environment's `prepare` hook in its interpreter."""
    python = str(python_of(spec)) if spec.requirements else sys.executable
    with tempfile.TemporaryDirectory(prefix="seeupo-") as packages:
        for place in packages_for(hook):
            (Path(packages) / place.name).symlink_to(place)
        arguments = [hook, str(folder_of(spec)), packages]
        run([python, "-I", "-c", PREPARE, *arguments], f"{spec.name}: its files could not be prepared by {hook}")


def needs_installation(spec: EnvSpec) -> bool:
    return bool(spec.requirements) or spec.prepare is not None


def python_of(spec: EnvSpec) -> Path:
    return folder_of(spec) / "venv" / "bin" / "python"


def requested(spec: EnvSpec) -> dict[str, Any]:
    """Return what an installation depends on; a change makes it out of date."""
    return {"requirements": list(spec.requirements), "prepare": spec.prepare}


def run(command: Sequence[str], problem: str) -> str:
    """Return a command's output; raise `EnvError` with the end of it if the command fails.

    The umask is fixed, because workers run as an unprivileged user that must be able to read the files.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o022, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise EnvError(problem, *(done.stderr or done.stdout).strip()[-2000:].splitlines())
    return done.stdout
