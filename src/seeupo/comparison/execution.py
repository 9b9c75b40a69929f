"""Run a comparison: train the runs that are missing, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from seeupo.comparison.comparison import Comparison, Phase
from seeupo.comparison.planned_runs import PlannedRun, WarmStart
from seeupo.comparison.processes import Job, Workers
from seeupo.comparison.result_store import TRAINING_REVISION, RunResult
from seeupo.config.loader import recipe_to_toml
from seeupo.envs.trust import Permissions
from seeupo.errors import RunError, TrainingError


class Observer(Protocol):
    """Observes a comparison; methods are called from several threads."""

    def on_phase(self, name: str, total: int, finished: int) -> None:
        """Called when a phase starts, with its number of runs and how many of them were finished before."""

    def on_text(self, run: str, text: str) -> None:
        """Called with the progress of a run."""

    def on_result(self, run: str, result: RunResult) -> None:
        """Called when a run is finished."""


@dataclass(frozen=True)
class Execution:
    """How the runs of a comparison are executed.

    Attributes:
        jobs: Number of runs at a time.
        permissions: What the user allows the recipe's environment.
        keep_runs: Keep the run directories of finished runs, below `work`.
    """

    jobs: int
    permissions: Permissions
    keep_runs: bool = False


def run_comparison(comparison: Comparison, execution: Execution, observer: Observer) -> None:
    """Train all runs of a comparison that are not finished, and pack the results at the end.

    Raises:
        TrainingError: A run failed.
        RunError: Another process runs the same comparison.
    """
    out = comparison.store.path
    with _locked(out), closing(Workers(execution.jobs, out / "logs")) as workers:
        for phase in comparison.phases():
            _run_phase(comparison, phase, workers, execution, observer)
        comparison.store.pack()


def _run_phase(
    comparison: Comparison, phase: Phase, workers: Workers, execution: Execution, observer: Observer
) -> None:
    by_name = {run.name: run for run in phase.runs}
    missing = [run for run in by_name.values() if not comparison.is_finished(run)]
    observer.on_phase(phase.name, len(phase.runs), len(phase.runs) - len(missing))

    def job(run: PlannedRun | WarmStart) -> Job:
        return Job(run.name, _request(comparison, run, execution))

    def done(name: str) -> None:
        result = comparison.result(by_name[name])
        if result is None:
            raise TrainingError(f"the result of the run {name} is missing; run the same command again")
        observer.on_result(name, result)

    starts = _missing_policies(comparison, missing)
    workers.run([job(start) for start in starts], on_text=lambda name, text: None, on_done=lambda name: None)
    workers.run([job(run) for run in missing], on_text=observer.on_text, on_done=done)


def _missing_policies(comparison: Comparison, runs: Sequence[PlannedRun | WarmStart]) -> list[WarmStart]:
    """Return the warm starts of these runs that have a result but no policy, as after a copy of the results alone."""
    starts = [run.warm_start for run in runs if isinstance(run, PlannedRun) and run.warm_start is not None]
    return [
        start for start in {start.name: start for start in starts}.values() if not comparison.store.has_policy(start)
    ]


def _request(comparison: Comparison, run: PlannedRun | WarmStart, execution: Execution) -> dict[str, Any]:
    store = comparison.store
    start = run if isinstance(run, WarmStart) else run.warm_start
    policy = None if start is None else str(store.policy_path(start).resolve())
    return {
        "arm": run.arm,
        "seed": run.seed,
        "settings": dict(run.settings),
        "recipe": recipe_to_toml(run.recipe),
        "policy": None if start is run else policy,
        "keep_policy": policy if start is run else None,
        # A run that was stopped is resumed only by code of the same revision.
        "work": str((store.path / "work" / f"{run.name}-{TRAINING_REVISION}").resolve()),
        "result": str(store.result_path(run).resolve()),
        "keep_run": execution.keep_runs,
        "trust": list(execution.permissions.trust),
        "unsandboxed": execution.permissions.unsandboxed,
    }


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            yield
    except Timeout:
        raise RunError(f"another process runs a comparison in {out}; wait for it, or choose another --out") from None
