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

import seeupo
from seeupo.envs.references import locate
from seeupo.envs.registry import EnvSpec
from seeupo.errors import EnvError, EnvUnavailable
from seeupo.utils.cache import cache_folder, make_cache_folder
from seeupo.utils.python_process import python_command, safe_environment

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
    if not spec.requirements and spec.prepare is None:
        return True
    try:
        record = json.loads((folder_of(spec) / READY).read_text())
    except (OSError, ValueError):
        return False
    return bool(record.get("asked") == requested(spec)) and python_of(spec).exists()


def interpreter(spec: EnvSpec) -> Path:
    """Return the interpreter of an installed environment."""
    if not installed(spec):
        raise EnvUnavailable(
            f"{spec.name} is not installed in the required versions; run: seeupo envs install {spec.name}"
        )
    return python_of(spec)


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
            venv = python_command("-m", "venv", str(folder / "venv"))
            run(venv, f"{spec.name}: the virtual environment could not be created")
            report(f"installing {', '.join(spec.requirements)}")
            pip = python_command(
                "-m", "pip", "install", "--no-deps", "--no-input", "--quiet", python=str(python_of(spec))
            )
            problem = f"{spec.name}: pip could not install its packages; is the package index reachable?"
            run([*pip, "--disable-pip-version-check", *spec.requirements], problem)
        if spec.prepare is not None:
            report("preparing the environment's files")
            prepare(spec, spec.prepare)
        record = {"asked": requested(spec), "python": platform.python_version()}
        (folder / READY).write_text(json.dumps(record, indent=2) + "\n")
    return folder


def prepare(spec: EnvSpec, hook: str) -> None:
    """Call the environment's `prepare` hook in its interpreter."""
    source = None if hook.startswith("seeupo.") else locate(hook)
    with tempfile.TemporaryDirectory(prefix="seeupo-") as packages:
        for path in (Path(seeupo.__file__).parent, *([] if source is None else [source.path])):
            (Path(packages) / path.name).symlink_to(path)
        command = [str(python_of(spec)), "-I", "-c", PREPARE, hook, str(folder_of(spec)), packages]
        run(command, f"{spec.name}: its files could not be prepared by {hook}")


def python_of(spec: EnvSpec) -> Path:
    """Return the environment's own interpreter, or the trainer's if the spec has no requirements."""
    return folder_of(spec) / "venv" / "bin" / "python" if spec.requirements else Path(sys.executable)


def requested(spec: EnvSpec) -> dict[str, Any]:
    """Return what an installation depends on; a change makes it out of date."""
    return {"requirements": list(spec.requirements), "prepare": spec.prepare}


def run(command: Sequence[str], problem: str) -> None:
    """Run a command; raise `EnvError` with the end of its output if it fails.

    The umask is fixed, because workers run as an unprivileged user that must be able to read the files.
    """
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        umask=0o022,
        stdin=subprocess.DEVNULL,
        env=safe_environment(),
    )
    if process.returncode != 0:
        raise EnvError(problem, *(process.stderr or process.stdout).strip()[-2000:].splitlines())
