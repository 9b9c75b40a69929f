"""Progress displays of a training run: a live status on a terminal or in a notebook, plain log lines elsewhere.

`seeupo.train` shows them as well as the command line.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.jupyter import JupyterMixin
from rich.live import Live
from rich.text import Text

from seeupo.callbacks import Callback
from seeupo.config.schema import Recipe
from seeupo.core.statistics import format_estimate
from seeupo.errors import UserError
from seeupo.evaluation.results import VERDICTS, verdict_of
from seeupo.runs.metric_history import mean, number, turn_values
from seeupo.utils.text import counted, one_line

Clock = Callable[[], float]
SPARKS = "▁▂▃▄▅▆▇█"
# Widths in characters.
SPARKLINE = 40
BAR = 24
LABEL = 11
CELL = 5
QUIET_SECONDS = 60.0
"""Seconds without a line after which the plain display prints the progress of the phase."""
NOTEBOOK_SECONDS = 0.25


def make_display(console: Console, *, clock: Clock = time.monotonic) -> Display:
    """Return the display that the console supports."""
    if console.is_jupyter:
        return NotebookDisplay(clock)
    # Sparklines and bars need Unicode, and a dumb terminal cannot move its cursor.
    if console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only:
        return LiveDisplay(console, clock)
    return PlainDisplay(console, clock)


class Display(Callback):
    """Keeps the current state of a run, which Rich renders as a few lines that never wrap.

    A thread renders it while the run changes it, so collections are replaced and never changed in place.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.title = ""
        self.iterations = 0
        self.iteration = 0
        self.phase = ""
        self.text = ""
        self.total: int | None = None
        self.done = 0
        self.successes: tuple[float, ...] = ()
        self.evaluations: tuple[Mapping[str, Any], ...] = ()
        self.turns: tuple[Mapping[str, Any], ...] = ()
        self.tokens_per_second: float | None = None
        self.clock = clock
        self._started = clock()
        self._phase_started = self._started
        self._loop_started = self._started
        self._last_ended = self._started
        self._timed_iterations = 0

    def on_start(self, recipe: Recipe, run_dir: Path) -> None:
        self.title = one_line(f"{recipe.model.name} on {recipe.environment.name}: {run_dir}")
        self.iterations = recipe.run.total_iterations

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.iteration = 0
        self.successes = ()
        self.evaluations = ()
        for record in records:
            self._add(record)

    def on_phase(self, name: str, total: int | None = None) -> None:
        self.phase = one_line(name)
        self.total = total
        self.done = 0
        self.text = ""
        self._phase_started = self.clock()
        if name == "collecting" and not self._timed_iterations:
            self._loop_started = self._phase_started

    def on_progress(self, done: int, text: str = "") -> None:
        self.done = done
        self.text = one_line(text)

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._add(record)
        if record["kind"] == "iteration":
            self._timed_iterations += 1
            self._last_ended = self.clock()

    def _add(self, record: Mapping[str, Any]) -> None:
        self.iteration = max(self.iteration, int(record["iteration"]))
        if record["kind"] == "iteration":
            self.successes = (*self.successes, float(record["success"]))
            self.turns = tuple(sorted(record.get("turns") or (), key=lambda turn: turn["turn"])) or self.turns
            self.tokens_per_second = number(record["timings"], "tokens_per_second")
        elif record["kind"] == "evaluation":
            self.evaluations = (*self.evaluations[:1], record)

    def elapsed(self) -> float:
        return self.clock() - self._started

    def in_phase(self) -> float:
        return self.clock() - self._phase_started

    def left(self) -> float | None:
        """Return the estimated seconds to the last iteration, evaluations included; None if they are unknown or 0."""
        if not self._timed_iterations or self.iteration >= self.iterations:
            return None
        pace = (self._last_ended - self._loop_started) / self._timed_iterations
        return max(0.0, pace * (self.iterations - self.iteration) - (self.clock() - self._last_ended))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        where = f"iteration {self.iteration} of {self.iterations}"
        head = Text(self.title, style="bold")
        head.truncate(max(1, width - len(where) - 2), overflow="ellipsis", pad=True)
        yield _no_wrap(head.append("  ").append(where, style="bold cyan"))
        if self.phase:
            yield self._phase_line(width)
        if self.successes:
            line = Text(_sparkline(self.successes, max(1, min(SPARKLINE, width - LABEL - 6))), style="green")
            yield _row("success", [line, Text(f"{self.successes[-1]:.2f}", style="bold")], width)
        if self.evaluations:
            yield self._held_out_line(width)
        if self.turns:
            yield from self._turn_lines(width)
        times = [Text(f"{_duration(self.elapsed())} elapsed")]
        if (left := self.left()) is not None:
            times.append(Text(f"{_duration(left)} left"))
        if self.tokens_per_second is not None:
            times.append(Text(f"{self.tokens_per_second:,.0f} tokens/s"))
        yield _row("time", times, width)

    def _phase_line(self, width: int) -> Text:
        parts = []
        if self.total:
            filled = min(BAR, BAR * self.done // self.total)
            bar = Text.assemble(("━" * filled, "green"), ("─" * (BAR - filled), "dim"))
            parts += [bar, Text(f"{self.done}/{self.total}")]
        elif self.done:
            parts.append(Text(f"{self.done} done"))
        parts.append(Text(_duration(self.in_phase()), style="dim"))
        if self.text:
            parts.append(Text(self.text))
        return _row(self.phase, parts, width)

    def _held_out_line(self, width: int) -> Text:
        last, first = self.evaluations[-1], self.evaluations[0]
        parts = [Text.assemble((_estimate(last, "avg@"), "bold"), f" after {last.get('iteration', 0)}")]
        if len(self.evaluations) > 1 and first.get("iteration") == 0:
            full = Text(f"initial {_estimate(first, 'avg@', name=False)}", style="dim")
            brief = Text(f"initial {_estimate(first, 'avg@', name=False, interval=False)}", style="dim")
            parts += [full if LABEL + parts[0].cell_len + 2 + full.cell_len <= width else brief]
        return _row("held out", [*parts, Text(_estimate(last, "pass@", interval=False), style="dim")], width)

    def _turn_lines(self, width: int) -> Iterator[Text]:
        columns: list[Mapping[str, Any] | None] = list(self.turns)
        if len(columns) > (fitting := max(3, (width - LABEL + 1) // CELL)):
            columns = [*self.turns[: fitting - 2], None, self.turns[-1]]
        for label, key in (("turn", "turn"), ("clipped", "clip_fraction"), ("M spread", "carry_sd")):
            if not turn_values([{"turns": self.turns}], key):
                continue
            row = Text.assemble((f"{label:<{LABEL}}", "dim"))
            for turn in columns:
                cell = "…" if turn is None else f"t{turn['turn'] + 1}" if key == "turn" else _short(number(turn, key))
                row.append(f"{cell:<{CELL}}", style="dim" if key == "turn" else None)
            row.rstrip()
            yield _no_wrap(row)


class LiveDisplay(Display):
    """Renders the state in place, from the first phase on; notes scroll above it."""

    def __init__(self, console: Console, clock: Clock) -> None:
        super().__init__(clock)
        self._console = console
        # What a callback prints appears above the status, unless it goes to a file.
        self._live = Live(self, console=console, refresh_per_second=4, redirect_stdout=sys.stdout.isatty())

    def on_phase(self, name: str, total: int | None = None) -> None:
        self._live.start()  # not before: a run that is refused shows only the refusal
        super().on_phase(name, total)

    def on_note(self, text: str) -> None:
        self._console.print(Text.assemble(("note: ", "bold yellow"), one_line(text)))

    def on_end(self) -> None:
        self.phase = ""
        self._live.stop()


class NotebookDisplay(JupyterMixin, Display):
    """Renders the state in the output of a notebook cell, below the notes, a few times per second at most."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._notes: list[str] = []
        self._drawn = clock()
        self._output = importlib.import_module("IPython.display").display(self, display_id=True)

    def on_phase(self, name: str, total: int | None = None) -> None:
        super().on_phase(name, total)
        self._draw()

    def on_progress(self, done: int, text: str = "") -> None:
        super().on_progress(done, text)
        if self.clock() - self._drawn >= NOTEBOOK_SECONDS:
            self._draw()

    def on_record(self, record: Mapping[str, Any]) -> None:
        super().on_record(record)
        self._draw()

    def on_note(self, text: str) -> None:
        self._notes.append(one_line(f"note: {text}"))
        self._draw()

    def on_end(self) -> None:
        self.on_phase("")

    def _draw(self) -> None:
        self._drawn = self.clock()
        self._output.update(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from map(Text, self._notes)
        yield from super().__rich_console__(console, options)


class PlainDisplay(Display):
    """Prints one line per event, from the first phase on, for logs, pipes and terminals without cursor control."""

    def __init__(self, console: Console, clock: Clock) -> None:
        super().__init__(clock)
        self._console = console
        self._printed: float | None = None
        self._resumed = ""

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        super().on_resume(records)
        if self.iteration:
            self._resumed = f"resumed after iteration {self.iteration}"
        elif records and records[-1]["kind"] == "warm_start":
            self._resumed = "resumed in the warm start"

    def on_phase(self, name: str, total: int | None = None) -> None:
        if self._printed is None:  # not before: a run that is refused shows only the refusal
            self._print(f"{self.title}: {counted(self.iterations, 'iteration')}")
        if self._resumed:
            self._print(self._resumed)
        self._resumed = ""
        super().on_phase(name, total)

    def on_progress(self, done: int, text: str = "") -> None:
        super().on_progress(done, text)
        if self._printed is not None and self.clock() - self._printed >= QUIET_SECONDS:
            finished = f"{self.done} of {self.total}" if self.total else f"{self.done}"
            detail = f", {self.text}" if self.text else ""
            self._print_timed(f"{self.phase}: {finished} done, {_duration(self.in_phase())} so far{detail}")

    def on_record(self, record: Mapping[str, Any]) -> None:
        super().on_record(record)
        every = 1 if self.iterations <= 20 else max(1, round(self.iterations / 50))
        kind, iteration = record["kind"], record["iteration"]
        if kind == "evaluation":
            failures = f", {record['failures']} failed" if record["failures"] else ""
            estimates = f"{_estimate(record, 'avg@')}, {_estimate(record, 'pass@')}"
            self._print_timed(f"evaluation after iteration {iteration}: {estimates}{failures}")
        elif kind == "iteration" and (iteration % every == 0 or iteration in (1, self.iterations)):
            self._print_timed(f"iteration {iteration} of {self.iterations}: {self._iteration(record)}")

    def on_note(self, text: str) -> None:
        self._print(f"note: {text}")

    def on_end(self) -> None:
        if self._printed is not None and not isinstance(sys.exception(), UserError):  # an error is printed next
            self._print_timed(f"ended after iteration {self.iteration} of {self.iterations}")

    def _iteration(self, record: Mapping[str, Any]) -> str:
        clipped = turn_values([record], "clip_fraction")
        spread = turn_values([record], "carry_sd")
        parts = [f"success {record['success']:.2f}"]
        if record["reward_mean"] != record["success"]:
            parts.append(f"reward {record['reward_mean']:.2f}")
        if clipped:
            parts.append(f"clipped {mean(clipped):.2f}")
        if spread:
            parts.append(f"M spread {max(spread):.2f}")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.0f} tokens/s")
        if (left := self.left()) is not None:
            parts.append(f"{_duration(left)} left")
        return ", ".join(parts)

    def _print_timed(self, line: str) -> None:
        self._print(f"[{_duration(self.elapsed())}] {line}")

    def _print(self, line: str) -> None:
        self._printed = self.clock()
        self._console.print(line, soft_wrap=True)


def result_line(summary: Mapping[str, Any]) -> str:
    """Return one line on how a run ended: the change of avg@k, the reason and the time."""
    name, minutes = f"avg@{summary['k']}", sum(summary["seconds"].values()) / 60
    scores = [
        _estimate(summary[when], "avg@", name=False, interval=False)
        for when in ("before", "after")
        if summary[when] is not None
    ]
    verdict = VERDICTS[verdict_of(summary["difference"], summary["k"])]
    return f"{verdict}: {name} on held-out tasks {' -> '.join(scores)} ({summary['reason']}; {minutes:.1f} minutes)"


def _row(label: str, parts: Sequence[Text], width: int) -> Text:
    """Return a label and as many parts as fit, in their order."""
    row = Text.assemble((f"{label:<{LABEL - 1}} ", "dim"))
    for index, part in enumerate(parts):
        if index and row.cell_len + 2 + part.cell_len > width:
            break
        row.append("  " if index else "").append_text(part)
    return _no_wrap(row)


def _no_wrap(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _sparkline(values: Sequence[float], width: int) -> str:
    """Return one character per value, or per mean of neighbors if there are more than `width`.

    The scale is always 0 to 1, so that small changes do not look large.
    """
    if len(values) > width:
        edges = [round(column * len(values) / width) for column in range(width + 1)]
        parts = [values[first:last] for first, last in pairwise(edges)]
        values = [sum(part) / len(part) for part in parts]
    return "".join(SPARKS[round(min(1.0, max(0.0, value)) * (len(SPARKS) - 1))] for value in values)


def _estimate(record: Mapping[str, Any], prefix: str, *, name: bool = True, interval: bool = True) -> str:
    """Return an evaluation's avg@k or pass@k, such as "avg@4 0.41 [0.36, 0.46]"."""
    key = next((key for key in record if key.startswith(prefix)), None)
    estimate = None if key is None else record[key]
    text = "unknown"
    if estimate is not None:
        text = format_estimate(estimate, digits=2) if interval else f"{estimate['value']:.2f}"
    return f"{key or prefix + 'k'} {text}" if name else text


def _short(value: float | None) -> str:
    """Return a number in at most four characters."""
    if value is None:
        return "-"
    for limit, form in ((9.995, ".2f"), (99.95, ".1f"), (9999.5, ".0f")):
        if value < limit:
            return f"{value:{form}}"
    return f"{value:.0e}".replace("e+0", "e")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
