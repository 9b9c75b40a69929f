"""Progress of a comparison: one bar over all runs on a terminal, a line per finished run elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
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
    """

    def __init__(self, console: Console, phases: Mapping[str, int]) -> None:
        self.console, self.phases = console, dict(phases)
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
        self.phases[name] = total
        self.done += finished
        self._progress.update(self._overall, description=name, completed=self.done, total=self.total)

    def on_text(self, run: str, text: str) -> None:
        label = one_line(f"  {run.rpartition('-')[0]}: {text}")
        if run not in self._running:
            self._running[run] = self._progress.add_task(label, total=None)
        self._progress.update(self._running[run], description=label)

    def on_result(self, run: str, result: Result) -> None:
        self.done += 1
        if run in self._running:
            self._progress.remove_task(self._running.pop(run))
        self._progress.update(self._overall, completed=self.done)
        reward = f", last reward {result.rewards[-1]:.3f}" if len(result.rewards) else ""
        ending = ", diverged" if result.diverged is not None else ""
        label = run.rpartition("-")[0]
        self.console.print(
            one_line(f"{self.done} of {self.total}: {label}{reward}{ending}, {result.total_seconds:.0f} s"),
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
