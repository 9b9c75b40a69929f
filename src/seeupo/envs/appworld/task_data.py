"""Locate AppWorld's tasks and hide their answers from workers that run model code.

AppWorld's license forbids publishing the data, so it is never shipped: users download it with AppWorld's own command.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from seeupo.envs.appworld.scratch import in_sandbox
from seeupo.errors import EnvUnavailable
from seeupo.utils.cache import cache_folder

SPLITS = ("train", "dev", "test_normal", "test_challenge")
PUBLIC_FOLDERS = ("api_docs", "base_dbs", "datasets")
IN_SANDBOX = Path("/appworld-data")
"""Path of the data in a sandbox: a directory in the root, which can be hidden from model code."""


def home() -> Path:
    """Return the folder of the data, which reinstalling the environment does not remove."""
    return cache_folder() / "appworld"


def data_folder(data: str | None) -> Path:
    """Return the folder with the tasks: the option `data`, or the default target of the download."""
    if in_sandbox():
        return IN_SANDBOX
    folder = home() / "data" if data is None else Path(data).expanduser().absolute()
    if not (folder / "tasks").is_dir() or not (folder / "datasets").is_dir():
        raise EnvUnavailable(
            f"AppWorld's tasks are not in {folder}. Download them (they must not be published) with:  "
            f"{cache_folder() / 'envs/appworld/venv/bin/appworld'} download data --root {folder.parent}"
        )
    return folder


def task_ids(folder: Path, split: str) -> list[str]:
    """Return the tasks of a split, in AppWorld's own order."""
    lines = (folder / "datasets" / f"{split}.txt").read_text().splitlines()
    # A line may have a tag after a colon, which is not part of the id.
    return [line.strip().partition(":")[0] for line in lines if line.strip()]


def mounts(options: Mapping[str, Any], *, role: Literal["run", "judge"]) -> dict[Path, Path]:
    """Return what a worker sees of the data: path in its sandbox -> path outside.

    Model code runs in workers of the role "run", which see a copy without answers.
    """
    folder = data_folder(options.get("data"))
    return {IN_SANDBOX: folder if role == "judge" else without_answers(folder)}


def without_answers(folder: Path) -> Path:
    """Return a copy of the data folder without ground truth: answers, checks and solutions.

    The copy is made once for each state of the folder.
    """
    changed = "".join(str((folder / name).stat().st_mtime_ns) for name in ("tasks", "datasets", *PUBLIC_FOLDERS[:2]))
    copy = home() / "views" / hashlib.sha256(f"{folder}{changed}".encode()).hexdigest()[:16]
    if copy.is_dir():
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=copy.parent) as unfinished:
        draft = Path(unfinished) / "data"
        for name in PUBLIC_FOLDERS:
            shutil.copytree(folder / name, draft / name, copy_function=link_or_copy)
        for task in sorted((folder / "tasks").iterdir()):
            (draft / "tasks" / task.name).mkdir(parents=True)
            link_or_copy(task / "specs.json", draft / "tasks" / task.name / "specs.json")
            shutil.copytree(task / "dbs", draft / "tasks" / task.name / "dbs", copy_function=link_or_copy)
        try:
            draft.rename(copy)
        except OSError:  # another process has made it in the meantime
            if not copy.is_dir():
                raise
    return copy


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Link or copy a file. Sandboxes mount the copy read-only, so links are safe."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
