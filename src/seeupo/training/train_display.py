"""Progress displays of a training run: a live status on a terminal or in a notebook, plain log lines elsewhere.

`seeupo.train` shows them as well as the command line.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from seeupo.callbacks import Callback
from seeupo.config.schema import Recipe
from seeupo.core.statistics import format_estimate
from seeupo.errors import UserError
from seeupo.evaluation.results import VERDICTS, verdict_of
from seeupo.runs.metric_history import number
from seeupo.utils.atomic_files import write_text
from seeupo.utils.terminal import Terminal
from seeupo.utils.text import counted, one_line

Clock = Callable[[], float]
SPARKS = "▁▂▃▄▅▆▇█"
SPARKLINE, BAR, LABEL, CELL, NOTEBOOK_WIDTH = 40, 24, 11, 5, 100
"""Widths in characters."""
LONG_PHASE_SECONDS = 10.0
REPEAT_SECONDS = 120.0
"""Seconds until the plain display prints a phase, and between its further lines about it."""
NOTEBOOK_SECONDS = 0.25


def make_display(console: Console, *, title: str = "", iterations: int = 0, clock: Clock = time.monotonic) -> Callback:
    """Return the display that the console supports. Title and iterations are those of the run when it starts."""
    status = Status(title, iterations, clock)
    if console.is_jupyter:
        return NotebookDisplay(show_in_notebook, status, clock)
    # Sparklines and bars need Unicode, and a dumb terminal cannot move its cursor.
    if console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only:
        return LiveDisplay(console, status)
    return PlainDisplay(console, status)


class Status:
    """The current state of a run. Rich renders it as a few lines that never wrap.

    A thread renders it while the run changes it, so collections are replaced and never changed in place.
    """

    def __init__(self, title: str, iterations: int, clock: Clock) -> None:
        self.title = one_line(title)
        self.iterations = iterations
        self._clock = clock
        self.iteration = 0
        self.name = self.text = ""
        self.total: int | None = None
        self.done = 0
        self.successes: tuple[float, ...] = ()
        self.evaluations: tuple[Mapping[str, Any], ...] = ()
        self.turns: tuple[Mapping[str, Any], ...] = ()
        self.tokens_per_second: float | None = None
        self._started = self._phase_started = self._last_ended = clock()
        self._first_started: float | None = None
        self._timed_iterations = 0

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.iteration = 0
        self.successes, self.evaluations = (), ()
        for record in records:
            self._add(record)

    def on_phase(self, name: str, total: int | None = None) -> None:
        self.name, self.total, self.done, self.text = one_line(name), total, 0, ""
        self._phase_started = self._clock()
        if name == "collecting" and self._first_started is None:
            self._first_started = self._phase_started

    def on_progress(self, done: int, text: str = "") -> None:
        self.done, self.text = done, one_line(text)

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._add(record)
        if record.get("kind") == "iteration":
            self._timed_iterations += 1
            self._last_ended = self._clock()

    def _add(self, record: Mapping[str, Any]) -> None:
        self.iteration = max(self.iteration, int(record.get("iteration", 0)))
        kind = record.get("kind")
        if kind == "iteration":
            self.successes = (*self.successes, float(record["success"]))
            self.turns = tuple(sorted(record.get("turns") or (), key=lambda turn: turn["turn"])) or self.turns
            self.tokens_per_second = number(record.get("timings") or {}, "tokens_per_second")
        elif kind == "evaluation":
            self.evaluations = (*self.evaluations[:1], dict(record))
        elif kind == "warm_start":
            self.text = f"loss {_short(number(record, 'loss'))}"

    def elapsed(self) -> float:
        return self._clock() - self._started

    def in_phase(self) -> float:
        return self._clock() - self._phase_started

    def left(self) -> float | None:
        """Return the estimated seconds to the last iteration, evaluations included; None before the first one."""
        if not self._timed_iterations:
            return None
        started = self._started if self._first_started is None else self._first_started
        pace = (self._last_ended - started) / self._timed_iterations
        return max(0.0, pace * (self.iterations - self.iteration) - (self._clock() - self._last_ended))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        where = f"iteration {self.iteration} of {self.iterations}"
        head = Text(self.title, style="bold")
        head.truncate(max(1, width - len(where) - 2), overflow="ellipsis", pad=True)
        yield _no_wrap(head.append("  ").append(where, style="bold cyan"))
        if self.name:
            yield self._phase_line(width)
        if self.successes:
            line = Text(_sparkline(self.successes, max(1, min(SPARKLINE, width - LABEL - 6))), style="green")
            yield _row("success", [line, Text(f"{self.successes[-1]:.2f}", style="bold")], width)
        if self.evaluations:
            yield self._held_out_line(width)
        if self.turns:
            yield from self._turn_lines(width)
        left = self.left()
        yield _row(
            "time",
            [
                Text(f"{_duration(self.elapsed())} elapsed"),
                *([Text(f"{_duration(left)} left")] if left is not None and self.iteration < self.iterations else []),
                *([Text(f"{self.tokens_per_second:,.0f} tokens/s")] if self.tokens_per_second is not None else []),
            ],
            width,
        )

    def _phase_line(self, width: int) -> Text:
        parts = []
        if self.total:
            filled = min(BAR, BAR * self.done // self.total)
            bar = Text.assemble(("━" * filled, "green"), ("─" * (BAR - filled), "dim"))
            parts += [bar, Text(f"{self.done}/{self.total}")]
        elif self.done:
            parts += [Text(f"{self.done} done")]
        parts += [Text(_duration(self.in_phase()), style="dim"), *([Text(self.text)] if self.text else [])]
        return _row(self.name, parts, width)

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
            if key != "turn" and all(number(turn, key) is None for turn in self.turns):
                continue
            row = Text.assemble((f"{label:<{LABEL}}", "dim"))
            for turn in columns:
                cell = "…" if turn is None else f"t{turn['turn'] + 1}" if key == "turn" else _short(number(turn, key))
                row.append(f"{cell:<{CELL}}", style="dim" if key == "turn" else None)
            row.rstrip()
            yield _no_wrap(row)


class Display(Callback):
    """Keeps the status of a run up to date."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def on_start(self, recipe: Recipe, run_dir: Path) -> None:
        self._status.title = one_line(f"{recipe.model.name} on {recipe.environment.name}: {run_dir}")
        self._status.iterations = recipe.run.total_iterations

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        self._status.on_resume(records)

    def on_phase(self, name: str, total: int | None = None) -> None:
        self._status.on_phase(name, total)

    def on_progress(self, done: int, text: str = "") -> None:
        self._status.on_progress(done, text)

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._status.on_record(record)


class LiveDisplay(Display):
    """Renders the status in place, from the first phase on; notes scroll above it."""

    def __init__(self, console: Console, status: Status) -> None:
        super().__init__(status)
        self._console = console
        # What a callback prints appears above the status, unless it goes to a file.
        self._live = Live(status, console=console, refresh_per_second=4, redirect_stdout=sys.stdout.isatty())

    def on_phase(self, name: str, total: int | None = None) -> None:
        self._live.start()  # not before: a run that is refused shows only the refusal
        super().on_phase(name, total)

    def on_note(self, text: str) -> None:
        self._console.print(Text.assemble(("note: ", "bold yellow"), one_line(text)))

    def on_end(self) -> None:
        self._status.on_phase("")
        self._live.stop()


Show = Callable[[str], Callable[[str], None]]
"""Shows HTML and returns a function that replaces it."""


def show_in_notebook(html: str) -> Callable[[str], None]:
    """Show HTML in the output of the current notebook cell."""
    notebook = importlib.import_module("IPython.display")
    handle = notebook.display(notebook.HTML(html), display_id=True)
    return lambda text: handle.update(notebook.HTML(text))


class NotebookDisplay(Display):
    """Renders the status in the output of a notebook cell, below the notes, a few times per second at most."""

    def __init__(self, show: Show, status: Status, clock: Clock) -> None:
        super().__init__(status)
        self._clock = clock
        self._notes: list[str] = []
        self._drawn = clock()
        self._replace = show(self._html())

    def on_start(self, recipe: Recipe, run_dir: Path) -> None:
        super().on_start(recipe, run_dir)
        self._draw()

    def on_phase(self, name: str, total: int | None = None) -> None:
        super().on_phase(name, total)
        self._draw()

    def on_progress(self, done: int, text: str = "") -> None:
        super().on_progress(done, text)
        if self._clock() - self._drawn >= NOTEBOOK_SECONDS:
            self._draw()

    def on_record(self, record: Mapping[str, Any]) -> None:
        super().on_record(record)
        self._draw()

    def on_note(self, text: str) -> None:
        self._notes.append(f"note: {text}")
        self._draw()

    def on_end(self) -> None:
        self.on_phase("")

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._replace(self._html())

    def _html(self) -> str:
        console = Terminal(
            file=StringIO(), record=True, width=NOTEBOOK_WIDTH, force_terminal=True, force_jupyter=False,
            color_system="truecolor",
        )  # fmt: skip
        for note in self._notes:
            console.print(note)
        console.print(self._status)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


class PlainDisplay(Display):
    """Prints one line per event, from the first phase on, for logs, pipes and terminals without cursor control."""

    def __init__(self, console: Console, status: Status) -> None:
        super().__init__(status)
        self._console = console
        self._started = self._resumed = self._ended = False
        self._long_phases: set[str] = set()
        self._due = LONG_PHASE_SECONDS  # seconds of the phase at which its next line is printed

    def on_resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        super().on_resume(records)
        self._resumed = True

    def on_phase(self, name: str, total: int | None = None) -> None:
        if not self._started:  # not before: a run that is refused shows only the refusal
            self._started = True
            self._print(f"{self._status.title}: {counted(self._status.iterations, 'iteration')}")
        self._print_long_phase()
        if self._resumed and self._status.iteration:
            self._print(f"resumed after iteration {self._status.iteration}")
        self._resumed = False
        super().on_phase(name, total)
        self._due = LONG_PHASE_SECONDS * (6 if name in self._long_phases else 1)

    def on_progress(self, done: int, text: str = "") -> None:
        super().on_progress(done, text)
        self._print_long_phase()

    def on_record(self, record: Mapping[str, Any]) -> None:
        super().on_record(record)
        every = 1 if self._status.iterations <= 20 else max(1, round(self._status.iterations / 50))
        kind, iteration = record.get("kind"), record.get("iteration", 0)
        if kind == "evaluation":
            failures = f", {record['failures']} failed" if record.get("failures") else ""
            estimates = f"{_estimate(record, 'avg@')}, {_estimate(record, 'pass@')}"
            self._print(f"{self._time()} evaluation after iteration {iteration}: {estimates}{failures}")
        elif kind == "iteration" and (iteration % every == 0 or iteration in (1, self._status.iterations)):
            self._print(f"{self._time()} iteration {iteration} of {self._status.iterations}: {self._iteration(record)}")

    def on_note(self, text: str) -> None:
        self._print(f"note: {text}")

    def on_end(self) -> None:
        if self._ended or not self._started:
            return
        self._ended = True
        if isinstance(sys.exception(), UserError):  # the error itself is printed next
            return
        self._print_long_phase()
        self._print(f"{self._time()} ended after iteration {self._status.iteration} of {self._status.iterations}")

    def _iteration(self, record: Mapping[str, Any]) -> str:
        turns = record.get("turns") or ()
        clipped = [value for turn in turns if (value := number(turn, "clip_fraction")) is not None]
        spread = [value for turn in turns if (value := number(turn, "carry_sd")) is not None]
        rate, left = number(record.get("timings") or {}, "tokens_per_second"), self._status.left()
        parts = [
            f"success {record['success']:.2f}",
            f"reward {record['reward_mean']:.2f}" if record["reward_mean"] != record["success"] else "",
            f"clipped {sum(clipped) / len(clipped):.2f}" if clipped else "",
            f"M spread {max(spread):.2f}" if spread else "",
            f"{rate:.0f} tokens/s" if rate is not None else "",
            f"{_duration(left)} left" if left is not None and self._status.iteration < self._status.iterations else "",
        ]
        return ", ".join(part for part in parts if part)

    def _print_long_phase(self) -> None:
        """Print a phase that takes long, every two minutes; one that recurs in every iteration only if far longer."""
        status = self._status
        if status.name and status.in_phase() >= self._due:
            self._due = status.in_phase() + REPEAT_SECONDS
            self._long_phases.add(status.name)
            done = f"{status.done} of {status.total}" if status.total else f"{status.done}"
            text = f", {status.text}" if status.text else ""
            self._print(f"{self._time()} {status.name}: {done} done, {_duration(status.in_phase())} so far{text}")

    def _time(self) -> str:
        return f"[{_duration(self._status.elapsed())}]"

    def _print(self, line: str) -> None:
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


def save_screenshot(
    metrics: Sequence[Mapping[str, Any]], path: Path, *, title: str = "seeupo train", iterations: int, width: int = 80
) -> None:
    """Write the live status at the end of these metrics (the records of metrics.jsonl) as an SVG file."""
    now = 0.0
    status = Status(title, iterations, lambda: now)
    for record in metrics:
        timings = record.get("timings") or {}
        now += timings.get("total") or sum(timings[key] for key in ("collect", "update", "seconds") if key in timings)
        status.on_record(record)
    status.text = ""
    console = Terminal(file=StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor")
    console.print(status)
    # An image in a repository must not load anything from a network, not even a font.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=status.title), flags=re.DOTALL)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, svg)


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
