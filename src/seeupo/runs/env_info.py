"""Environment info: the versions and hardware that are needed to repeat a run.

Environment variables, host names and user names are left out, so that a run directory can be published.
"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import seeupo

GIT_SECONDS = 10


def collect_env_info() -> dict[str, Any]:
    """Return versions, platform, cores, PyTorch's threads, GPUs, and the commit of the source if it is under git."""
    return {
        "versions": {
            "python": platform.python_version(),
            "seeupo": seeupo.__version__,
            "torch": str(torch.__version__),  # unlike the package's metadata, it always names the build
            **{package: version(package) for package in ("transformers", "numpy")},
        },
        "platform": {"system": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "git": git_info(Path(seeupo.__file__).parent),
    }


def git_info(folder: Path) -> dict[str, Any] | None:
    """Return the commit of a package's folder and whether the folder has changes; None if git does not track it."""
    # A virtual environment inside a repository holds packages that the repository does not track.
    if not (folder / "__init__.py").exists() or _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--", ".")
    if commit is None or changes is None:
        return None
    return {"commit": commit.strip(), "dirty": bool(changes.strip())}


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, or None if it is missing, fails or hangs."""
    # Inside a git hook, these variables point to the repository of the hook.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, check=False, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _cores() -> int:
    """Return the number of cores that this process may use; containers and schedulers limit it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
