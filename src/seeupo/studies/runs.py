"""Runs that a study is made of: each a `seeupo train` of its own, made once and gone on with if it was stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from seeupo.errors import TrainingError

T = TypeVar("T")


@dataclass(frozen=True)
class Runs:
    """Runs of a recipe in a folder: `threads` for each of `jobs` at a time."""

    recipe: str
    folder: Path
    jobs: int = 1
    threads: int | None = None

    def summary(self, name: str, changes: Sequence[str]) -> dict[str, Any]:
        """The summary of a run, which is made, or gone on with, if there is none yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        if not (path / "summary.json").exists():
            begun = (path / "recipe.toml").exists()
            threads = [] if self.threads is None else [f"--run.threads={self.threads}"]
            how = ["--resume", str(path)] if begun else [self.recipe, "--out", str(path), *changes, *threads]
            command = [sys.executable, "-m", "seeupo", "train", *how]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise TrainingError(f"the run {path} ended with code {done.returncode}: {done.stderr[-500:]}")
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        return summary

    def each(self, make: Callable[..., T], arguments: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """What `make` returns for each of the arguments, as it is done."""
        with ThreadPoolExecutor(self.jobs) as executor:
            for future in as_completed([executor.submit(make, *each) for each in arguments]):
                yield future.result()
