"""Progress of a comparison: one bar over all runs on a terminal.

Elsewhere it is a line per finished run, and one every two minutes on what the running ones do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol

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

from seeupo.utils.text import one_line

REPEAT_SECONDS = 120.0


class Result(Protocol):
    """What the display shows of a finished run."""

    @property
    def rewards(self) -> Any: ...

    @property
    def total_seconds(self) -> float: ...

    @property
    def diverged(self) -> str | None: ...


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
        self.done = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._overall = self._progress.add_task("runs", total=sum(self.phases.values()))
        self._running: dict[str, TaskID] = {}
        self._texts: dict[str, str] = {}
        self._printed = clock()
        self._lock = threading.Lock()  # runs report from threads of their own
        self._closed = threading.Event()
        self._reminder = threading.Thread(target=self._remind, daemon=True)

    def __enter__(self) -> CompareDisplay:
        self._progress.start()
        if not self.console.is_terminal:
            self._reminder.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        self._closed.set()
        if self._reminder.is_alive():
            self._reminder.join()

    @property
    def total(self) -> int:
        return sum(self.phases.values())

    def on_phase(self, name: str, total: int, finished: int) -> None:
        self.phases[name] = total
        self.done += finished
        self._progress.update(self._overall, description=name, completed=self.done, total=self.total)

    def on_text(self, run: str, text: str) -> None:
        label = one_line(f"{label_of(run)}: {text}")
        with self._lock:
            self._texts[run] = label
        if run not in self._running:
            self._running[run] = self._progress.add_task(f"  {label}", total=None)
        self._progress.update(self._running[run], description=f"  {label}")

    def on_result(self, run: str, result: Result) -> None:
        if run in self._running:
            self._progress.remove_task(self._running.pop(run))
        reward = f", last reward {result.rewards[-1]:.3f}" if len(result.rewards) else ""
        ending = ", diverged" if result.diverged is not None else ""
        with self._lock:
            self.done += 1
            self._texts.pop(run, None)
            self._progress.update(self._overall, completed=self.done)
            self.print(
                one_line(f"{self.done} of {self.total}: {label_of(run)}{reward}{ending}, {result.total_seconds:.0f} s")
            )

    def print_running(self) -> None:
        """Print what the running runs do, if nothing has been printed for two minutes."""
        with self._lock:
            if self._texts and self.clock() - self._printed >= REPEAT_SECONDS:
                self.print(f"{self.done} of {self.total} done; {'; '.join(self._texts.values())}")

    def _remind(self) -> None:
        while not self._closed.wait(1.0):
            self.print_running()

    def print(self, line: str) -> None:
        self._printed = self.clock()
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


def label_of(run: str) -> str:
    """Return the name of a run without the hash at its end: the arm and the seed."""
    return run.rpartition("-")[0]
