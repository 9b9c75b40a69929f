"""Training runs of a study: one `seeupo train` process each, resumed if it was interrupted."""

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
    """Training runs of a recipe.

    Attributes:
        recipe: Recipe name or path.
        directory: Parent of the run directories.
        jobs: Number of runs at a time.
        threads: Threads per run; None for the default of `seeupo train`.
    """

    recipe: str
    directory: Path
    jobs: int = 1
    threads: int | None = None

    def summary(self, name: str, changes: Sequence[str]) -> dict[str, Any]:
        """Return the summary of a run; train or resume it first if there is none.

        Raises:
            TrainingError: if the training process fails.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / name
        if not (path / "summary.json").exists():
            started = (path / "recipe.toml").exists()
            threads = [] if self.threads is None else [f"--run.threads={self.threads}"]
            arguments = ["--resume", str(path)] if started else [self.recipe, "--out", str(path), *changes, *threads]
            command = [sys.executable, "-m", "seeupo", "train", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                problem = f"the run {path} failed with exit code {done.returncode}:"
                raise TrainingError(problem, *done.stderr[-500:].splitlines())
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        return summary

    def map(self, function: Callable[..., T], arguments: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """Apply the function to each tuple of arguments, `jobs` at a time, and yield results as they finish."""
        with ThreadPoolExecutor(self.jobs) as executor:
            for future in as_completed([executor.submit(function, *each) for each in arguments]):
                yield future.result()
