"""Study that trains a recipe with several seeds and compares each run with a supervised control.

Each seed draws its own model, demonstrations, tasks and warm start. The control spends the same number of optimizer
steps on the same demonstrations instead.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from seeupo.config.loader import read_recipe
from seeupo.core.statistics import format_estimate
from seeupo.errors import TrainingError
from seeupo.utils.python_process import python_command, safe_environment

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
            command = python_command("-m", "seeupo", "train", *arguments)
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=safe_environment())
            if done.returncode != 0:
                problem = f"the run {path} failed with exit code {done.returncode}:"
                raise TrainingError(problem, *done.stderr[-500:].splitlines())
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        return summary

    def map(self, function: Callable[..., T], arguments: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """Apply the function to each tuple of arguments, `jobs` at a time, and yield results as they finish."""
        with ThreadPoolExecutor(self.jobs) as executor:
            for future in as_completed([executor.submit(function, *values) for values in arguments]):
                yield future.result()


@dataclass(frozen=True)
class Study:
    """A training run and a control for each seed.

    Attributes:
        runs: Training runs of the recipe.
        seeds: Number of seeds, counted from 0.
    """

    runs: Runs
    seeds: int

    def run(self, report: Callable[[str], None]) -> dict[str, Any]:
        """Train the missing runs, report each one as it finishes, and return the table of all runs."""
        rows = []
        for row in self.runs.map(self._seed, ((seed,) for seed in range(self.seeds))):
            rows.append(row)
            report(format_row(row))
        return table_of(self.runs.recipe, sorted(rows, key=lambda row: row["seed"]))

    def _seed(self, seed: int) -> dict[str, Any]:
        trained = self.runs.summary(f"seed-{seed}", [f"--run.seed={seed}"])
        warm_start = read_recipe(self.runs.recipe).warm_start
        if warm_start is None:
            raise TrainingError(
                f"{self.runs.recipe} has no warm start. The reliability study compares training with more warm-start "
                "batches: choose a recipe with a [warm_start] section."
            )
        steps = warm_start.batches + trained["optimizer_steps"]
        control = self.runs.summary(
            f"control-{seed}",
            [
                f"--run.seed={seed}",
                f"--warm_start.batches={steps}",
                "--run.iterations=1",
                "--optimizer.learning_rate=0",
            ],
        )
        return {
            "seed": seed,
            "before": trained["before"],
            "after": trained["after"],
            "control": control["before"],
            "minutes": sum(trained["seconds"].values()) / 60,
            "optimizer_steps": trained["optimizer_steps"],
            "k": trained["k"],
        }


def table_of(recipe: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean and lowest scores, and whether every run doubled its score and beat its control."""
    name = f"avg@{rows[0]['k']}"

    def scores(when: str) -> list[float]:
        return [row[when][name]["value"] for row in rows]

    return {
        "recipe": recipe,
        "seeds": len(rows),
        "lowest_after": min(scores("after")),
        "mean_before": sum(scores("before")) / len(rows),
        "mean_after": sum(scores("after")) / len(rows),
        "mean_control": sum(scores("control")) / len(rows),
        "all_double": all(after >= 2 * before for before, after in zip(scores("before"), scores("after"), strict=True)),
        "all_above_control": all(a > c for a, c in zip(scores("after"), scores("control"), strict=True)),
        "runs": [{**row, **{when: row[when][name] for when in ("before", "after", "control")}} for row in rows],
    }


def markdown(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table as Markdown lines."""
    yield "| seed | after the warm start | after SeeUPO | supervised learning instead | minutes |"
    yield "|---|---|---|---|---|"
    for row in table["runs"]:
        cells = " | ".join(format_estimate(row[when]) for when in ("before", "after", "control"))
        yield f"| {row['seed']} | {cells} | {row['minutes']:.1f} |"


def format_row(row: Mapping[str, Any]) -> str:
    name = f"avg@{row['k']}"
    before, after, control = (row[when][name]["value"] for when in ("before", "after", "control"))
    return (
        f"seed {row['seed']}: {name} {before:.3f} -> {after:.3f}, control {control:.3f}, {row['minutes']:.1f} minutes"
    )
