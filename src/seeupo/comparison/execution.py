"""Run a comparison: train the runs that are missing in worker processes, a few at a time."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from filelock import FileLock, Timeout

from seeupo.comparison.compare_display import CompareDisplay
from seeupo.comparison.comparison import Comparison
from seeupo.comparison.planned_runs import PlannedRun
from seeupo.comparison.result_store import LOCK, LOGS, REMOVED, TRAINING_REVISION, WORK
from seeupo.config.loader import recipe_to_toml
from seeupo.envs.trust import Permissions
from seeupo.errors import RunError, TrainingError
from seeupo.utils.plain_files import open_plain
from seeupo.utils.python_process import python_command, safe_environment

WORKER = "seeupo.comparison.training_process"


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


def run_comparison(comparison: Comparison, execution: Execution, display: CompareDisplay) -> None:
    """Train all runs of a comparison that are not finished, and pack the results at the end.

    Raises:
        TrainingError: A run failed.
        RunError: Another process runs the same comparison.
    """
    out = comparison.store.path
    with _locked(out), closing(Workers(execution.jobs, out / LOGS)) as workers:
        for removed in (out / WORK).glob(f".*{REMOVED}"):
            shutil.rmtree(removed, ignore_errors=True)
        for phase, runs in comparison.phases():
            missing = {run.name: run for run in runs if comparison.result(run) is None}
            display.on_phase(phase, len(runs), len(runs) - len(missing))
            starts = _missing_policies(comparison, list(missing.values()))
            for _ in workers.train(_requests(comparison, starts, execution), display.on_text):
                pass
            for name in workers.train(_requests(comparison, list(missing.values()), execution), display.on_text):
                display.on_result(name, comparison.finished(missing[name]))
        comparison.store.pack()


class Workers:
    """Worker processes that train runs; they are started when they are needed and end with this object.

    Args:
        count: Largest number of processes.
        logs: Directory of their log files.
    """

    def __init__(self, count: int, logs: Path) -> None:
        self.count, self.logs = count, logs
        self._processes: list[subprocess.Popen[str]] = []
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count)

    def train(self, requests: Mapping[str, Mapping[str, Any]], on_text: Callable[[str, str], None]) -> Iterator[str]:
        """Train the runs of these requests, by name, and yield the names of finished ones.

        Args:
            requests: What `seeupo.comparison.training_process` reads.
            on_text: Called from other threads with the name of a run and its progress.

        Raises:
            TrainingError: A run failed. The others are stopped by `close`, and can be resumed.
        """
        for _ in range(len(self._processes), min(self.count, len(requests))):
            self._start_process()
        futures = {
            self._threads.submit(self._train, name, request, on_text): name for name, request in requests.items()
        }
        for future in as_completed(futures):
            future.result()
            yield futures[future]

    def close(self) -> None:
        """Stop all processes at once."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown()
        for process in self._processes:
            with suppress(BrokenPipeError), process:  # closes its pipes
                pass

    def _start_process(self) -> None:
        with open_plain(self.logs / f"worker-{len(self._processes)}.log", append=True) as log:
            process = subprocess.Popen(
                python_command("-m", WORKER),
                env=safe_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C reaches the parent only, which then ends its workers
            )
        self._processes.append(process)
        self._idle.put(process)

    def _train(self, name: str, request: Mapping[str, Any], on_text: Callable[[str, str], None]) -> None:
        process = self._idle.get()
        try:
            _ask(process, name, request, on_text)
        finally:
            self._idle.put(process)


def _ask(
    process: subprocess.Popen[str], name: str, request: Mapping[str, Any], on_text: Callable[[str, str], None]
) -> None:
    """Wait until a process has trained a run.

    Raises:
        TrainingError: The run failed, or the process ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        print(json.dumps(request), file=process.stdin, flush=True)
    for line in process.stdout:
        message = json.loads(line)
        if "text" in message:
            on_text(name, message["text"])
        elif "done" in message:
            return
        else:
            first, *rest = message["error"]
            raise TrainingError(f"the run {name} failed: {first}", *rest)
    raise TrainingError(
        f"the process of the run {name} ended with exit code {process.wait()}; the directory `logs` beside the results "
        "may say why. Run the same command again to continue"
    )


def _missing_policies(comparison: Comparison, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the warm starts of these runs that have a result but no policy, as after a copy of the results alone."""
    starts = {run.warm_start.name: run.warm_start for run in runs if run.warm_start is not None}
    return [start for start in starts.values() if not comparison.store.has_policy(start)]


def _requests(comparison: Comparison, runs: Sequence[PlannedRun], execution: Execution) -> dict[str, dict[str, Any]]:
    return {run.name: _request(comparison, run, execution) for run in runs}


def _request(comparison: Comparison, run: PlannedRun, execution: Execution) -> dict[str, Any]:
    store = comparison.store
    root = store.path.resolve()  # its parts are no links
    start = run if run.is_warm_start else run.warm_start
    policy = None if start is None else str(root / store.policy_path(start).relative_to(store.path))
    return {
        "arm": run.arm,
        "seed": run.seed,
        "settings": dict(run.settings),
        "recipe": recipe_to_toml(run.recipe),
        "policy": None if start is run else policy,
        "keep_policy": policy if start is run else None,
        # A run that was stopped is resumed only by code of the same revision.
        "work": str(root / WORK / f"{run.name}-{TRAINING_REVISION}"),
        "result": str(root / store.result_path(run).relative_to(store.path)),
        "keep_run": execution.keep_runs,
        "trust": list(execution.permissions.trust),
        "unsandboxed": execution.permissions.unsandboxed,
    }


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    lock = FileLock(out / LOCK, timeout=0)
    try:
        for folder in (out, out / LOGS):
            folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise RunError(f"another process runs a comparison in {out}; wait for it, or choose another --out") from None
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror or error}; choose another --out") from error
    try:
        yield
    finally:
        lock.release()
