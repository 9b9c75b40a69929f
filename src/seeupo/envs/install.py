"""Interpreters of environments: a virtual environment each, with pinned packages, in the cache folder.

Nothing of a benchmark enters the trainer's own environment, and after the installation no network is needed.
"""

from __future__ import annotations

import fcntl
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seeupo.envs.pool.worker import packages_of
from seeupo.envs.registry import EnvSpec
from seeupo.errors import EnvError
from seeupo.utils.cache import cache_folder

PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)")
READY = "ready.json"
VERSIONS = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
PREPARE = """
import importlib, pathlib, sys
sys.path[:0] = [sys.argv[3]]
module, _, name = sys.argv[1].partition(":")
getattr(importlib.import_module(module), name)(pathlib.Path(sys.argv[2]))
"""


def folder_of(spec: EnvSpec) -> Path:
    """Where an environment's interpreter and data are kept."""
    return cache_folder() / "envs" / spec.name


def installed(spec: EnvSpec) -> bool:
    """Whether the environment can be used, in exactly the versions that the spec asks for."""
    if not needs_installation(spec):
        return True
    try:
        record = json.loads((folder_of(spec) / READY).read_text())
    except (OSError, ValueError):
        return False
    return bool(record.get("asked") == asked(spec)) and (not spec.requirements or python_of(spec).exists())


def interpreter(spec: EnvSpec) -> Path:
    """The environment's interpreter: its own, or the trainer's when it has no requirements."""
    if not installed(spec):
        raise EnvError(f"{spec.name} is not installed, or in other versions; run: seeupo envs install {spec.name}")
    return python_of(spec) if spec.requirements else Path(sys.executable)


def install(spec: EnvSpec, *, report: Callable[[str], None] = lambda _: None) -> Path:
    """Make the environment's interpreter, unless it is there; returns the environment's folder.

    A folder counts as installed when its record has been written, which is the last thing to happen. Two processes
    that install the same environment wait for one another.
    """
    for requirement in spec.requirements:
        if not PIN.fullmatch(requirement):
            raise EnvError(f"{spec.name}: requirement {requirement!r} should be pinned, as name==version")
    folder = folder_of(spec)
    with locked(folder.with_name(f".{spec.name}.lock")):
        if installed(spec):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        record: dict[str, Any] = {"asked": asked(spec), "python": platform.python_version(), "versions": {}}
        if spec.requirements:
            report(f"making an interpreter in {folder}")
            run([sys.executable, "-m", "venv", str(folder / "venv")], f"{spec.name}: no virtual environment was made")
            report(f"installing {', '.join(spec.requirements)}")
            record["versions"] = install_packages(spec)
        if spec.prepare is not None:
            report("preparing the environment's files")
            prepare(spec, spec.prepare)
        (folder / READY).write_text(json.dumps(record, indent=2) + "\n")
    return folder


def install_packages(spec: EnvSpec) -> dict[str, str]:
    """Install exactly the pinned packages; returns the versions that are then there."""
    python = str(python_of(spec))
    pip = [python, "-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check", "--quiet"]
    run([*pip, *spec.requirements], f"{spec.name}: pip could not install its packages; is the package index reachable?")
    pins = dict(requirement.split("==") for requirement in spec.requirements)
    output = run([python, "-I", "-c", VERSIONS, *pins], f"{spec.name}: a package is missing after the installation")
    versions: dict[str, str] = json.loads(output)
    return versions


def prepare(spec: EnvSpec, hook: str) -> None:
    """Call the environment's own hook in its interpreter."""
    python = str(python_of(spec)) if spec.requirements else sys.executable
    with tempfile.TemporaryDirectory(prefix="seeupo-") as packages:
        for place in packages_of(hook):
            (Path(packages) / place.name).symlink_to(place)
        arguments = [hook, str(folder_of(spec)), packages]
        run([python, "-I", "-c", PREPARE, *arguments], f"{spec.name}: its files could not be prepared by {hook}")


def needs_installation(spec: EnvSpec) -> bool:
    return bool(spec.requirements) or spec.prepare is not None


def python_of(spec: EnvSpec) -> Path:
    return folder_of(spec) / "venv" / "bin" / "python"


def asked(spec: EnvSpec) -> dict[str, Any]:
    """What an installation is made for; another one is made when this changes."""
    return {"requirements": list(spec.requirements), "prepare": spec.prepare}


def run(command: Sequence[str], problem: str) -> str:
    """The output of a command; `EnvError` with the end of what it printed if it fails.

    Files must be readable for the unprivileged user that workers run as, whatever the umask.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o022, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise EnvError(f"{problem}\n{(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the lock ends with the process, whatever happens to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
