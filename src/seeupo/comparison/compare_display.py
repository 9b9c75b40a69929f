"""Progress of a comparison: one bar over all runs on a terminal, and a line per finished run.

Without a terminal, a line says every two minutes what a run does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Lock
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from seeupo.comparison.result_store import RunResult
from seeupo.utils.text import one_line

REPEAT_SECONDS = 120.0


class CompareDisplay:
    """Shows how many runs are finished, the time left, and what each running one does.

    Args:
        phases: Number of runs by phase.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, console: Console, phases: Mapping[str, int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.phases, self.clock = console, dict(phases), clock
        self._printed = clock()
        self.done = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._overall = self._progress.add_task("runs", total=self.total)
        self._running: dict[str, TaskID] = {}
        self._lock = Lock()  # runs report from threads of their own

    def __enter__(self) -> CompareDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @property
    def total(self) -> int:
        return sum(self.phases.values())

    def on_phase(self, name: str, total: int, finished: int) -> None:
        """Show a phase that starts, with its number of runs and how many of them were finished before."""
        self.phases[name] = total
        self.done += finished
        self._progress.update(self._overall, description=name, completed=self.done, total=self.total)

    def on_text(self, run: str, text: str) -> None:
        """Show the progress of a run."""
        label = one_line(f"  {label_of(run)}: {text}")
        with self._lock:
            if run not in self._running:
                self._running[run] = self._progress.add_task(label, total=None)
            self._progress.update(self._running[run], description=label)
            if not self.console.is_terminal and self.clock() - self._printed >= REPEAT_SECONDS:
                self.print(f"{self.done} of {self.total} done; {label.strip()}")

    def on_result(self, run: str, result: RunResult) -> None:
        """Show the result of a finished run."""
        with self._lock:
            if run in self._running:
                self._progress.remove_task(self._running.pop(run))
        self.done += 1
        self._progress.update(self._overall, completed=self.done)
        reward = f", last reward {result.rewards[-1]:.3f}" if len(result.rewards) else ""
        ending = ", diverged" if result.diverged is not None else ""
        self.print(f"{self.done} of {self.total}: {label_of(run)}{reward}{ending}, {result.total_seconds:.0f} s")

    def print(self, line: str) -> None:
        self._printed = self.clock()
        self.console.print(one_line(line), soft_wrap=True, highlight=False, markup=False)


def label_of(run: str) -> str:
    """Return the name of a run without the hash at its end: the arm and the seed."""
    return run.rpartition("-")[0]
