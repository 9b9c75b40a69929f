"""Where AppWorld's tasks are, and which part of them a process may see.

AppWorld's licence forbids publishing the data, so it is never shipped: people fetch it by AppWorld's own command.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from seeupo.errors import EnvError
from seeupo.utils.cache import cache_folder

SPLITS = ("train", "dev", "test_normal", "test_challenge")
PUBLIC_FOLDERS = ("api_docs", "base_dbs", "datasets")
PUBLIC_IN_TASK = ("specs.json", "dbs")
"""All that the engine needs to run a task. What is left out is the ground truth: answers, checks and solutions."""


def home() -> Path:
    """The folder of the data. The interpreter is elsewhere: a new installation replaces it."""
    return cache_folder() / "appworld"


def data_folder(data: str | None) -> Path:
    """The folder with the tasks: the option `data`, or where the command of the error message puts a download."""
    folder = home() / "data" if data is None else Path(data).expanduser().absolute()
    if not (folder / "tasks").is_dir() or not (folder / "datasets").is_dir():
        raise EnvError(
            f"AppWorld's tasks are not in {folder}. Fetch them (they must not be published) with:  "
            f"{cache_folder() / 'envs/appworld/venv/bin/appworld'} download data --root {folder.parent}"
        )
    return folder


def task_ids(folder: Path, split: str) -> list[str]:
    """The tasks of a split, in AppWorld's own order."""
    listing = folder / "datasets" / f"{split}.txt"
    if split not in SPLITS or not listing.is_file():
        there = ", ".join(name for name in SPLITS if (folder / "datasets" / f"{name}.txt").is_file())
        raise EnvError(f"split {split!r}: {folder} has {there or 'no split'}")
    # A line may carry a tag after a colon, which is no part of the name.
    return [line.strip().partition(":")[0] for line in listing.read_text().splitlines() if line.strip()]


def mounts(options: Mapping[str, Any], *, role: Literal["run", "judge"]) -> dict[Path, Path]:
    """What a worker sees of the data: place inside its sandbox -> place outside.

    Model code runs in workers of the role "run". There, the place of the data holds a copy without answers.
    """
    folder = data_folder(options.get("data"))
    return {folder: folder if role == "judge" else without_answers(folder)}


def without_answers(folder: Path) -> Path:
    """A copy of the data folder that lacks the ground truth; made once for each state of the folder."""
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
        except OSError:  # somebody else has made it in the meantime
            if not copy.is_dir():
                raise
    return copy


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Sandboxes mount the copy read-only, so the same file may serve in both places."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
