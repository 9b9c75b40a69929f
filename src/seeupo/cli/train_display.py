"""What a person sees while a run trains: a few lines that stay in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from seeupo.training.callbacks import TrainingCallback
from seeupo.utils.atomic_files import write_text

Clock = Callable[[], float]
BLOCKS = "▁▂▃▄▅▆▇█"
CURVE, BAR, LABEL, CELL = 40, 24, 11, 5
SECONDS_THAT_LAST = 10.0


def make_display(console: Console, *, title: str, iterations: int, clock: Clock = time.monotonic) -> TrainingCallback:
    """A display that suits the console; `title` names the run, which has so many iterations."""
    # Blocks and bars are no ASCII, and a dumb terminal cannot move its cursor.
    if console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only:
        return LiveDisplay(console, Board(title, iterations, clock))
    return PlainDisplay(console, Board(title, iterations, clock))


class Board:
    """What there is to show of a run. Printed by rich, it is a few lines that never wrap.

    A thread redraws it while the run changes it: lists and mappings are replaced, never changed in place.
    """

    def __init__(self, title: str, iterations: int, clock: Clock) -> None:
        self.title, self.iterations, self._clock = _one_line(title), iterations, clock
        self.iteration = 0
        self.name = self.text = ""
        self.total: int | None = None
        self.done = 0
        self.successes: tuple[float, ...] = ()
        self.evaluations: tuple[Mapping[str, Any], ...] = ()
        self.turns: tuple[Mapping[str, Any], ...] = ()
        self.tokens_per_second: float | None = None
        self._started = self._phase_began = self._last_ended = clock()
        self._first_began: float | None = None
        self._heard = 0
        self.begun = False

    def on_phase(self, name: str, total: int | None = None) -> None:
        self.name, self.total, self.done, self.text = _one_line(name), total, 0, ""
        self._phase_began = self._clock()
        self.begun = True
        if name == "collecting" and self._first_began is None:
            self._first_began = self._phase_began

    def on_progress(self, done: int, text: str = "") -> None:
        self.done, self.text = done, _one_line(text)

    def on_record(self, record: Mapping[str, Any]) -> None:
        self.iteration = max(self.iteration, int(record.get("iteration", 0)))
        kind = record.get("kind")
        if kind == "iteration":
            self.successes = (*self.successes, float(record["success"]))
            self.turns = tuple(sorted(record.get("turns") or (), key=lambda turn: turn["turn"])) or self.turns
            self.tokens_per_second = _number(record.get("timings"), "tokens_per_second")
            if self.begun:
                self._heard += 1
                self._last_ended = self._clock()
        elif kind == "evaluation":
            self.evaluations = (*self.evaluations[:1], dict(record))
        elif kind == "warm_start":
            self.text = f"loss {_short(_number(record, 'loss'))}"

    def elapsed(self) -> float:
        return self._clock() - self._started

    def in_phase(self) -> float:
        return self._clock() - self._phase_began

    def left(self) -> float | None:
        """Seconds to the last iteration at the pace so far, evaluations included; None as long as nobody can know."""
        if not self._heard:
            return None
        began = self._started if self._first_began is None else self._first_began
        pace = (self._last_ended - began) / self._heard
        return max(0.0, pace * (self.iterations - self.iteration) - (self._clock() - self._last_ended))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        where = f"iteration {self.iteration} of {self.iterations}"
        head = Text(self.title, style="bold")
        head.truncate(max(1, width - len(where) - 2), overflow="ellipsis", pad=True)
        yield _unbroken(head.append("  ").append(where, style="bold cyan"))
        if self.name:
            yield self._phase_line(width)
        if self.successes:
            curve = Text(_curve(self.successes, max(1, min(CURVE, width - LABEL - 6))), style="green")
            yield _row("success", [curve, Text(f"{self.successes[-1]:.2f}", style="bold")], width)
        if self.evaluations:
            yield self._held_out_line(width)
        if self.turns:
            yield from self._turn_lines(width)
        left = self.left()
        yield _row(
            "time",
            [
                Text(f"{_span(self.elapsed())} elapsed"),
                *([Text(f"{_span(left)} left")] if left is not None and self.iteration < self.iterations else []),
                *([Text(f"{self.tokens_per_second:,.0f} tokens/s")] if self.tokens_per_second is not None else []),
            ],
            width,
        )

    def _phase_line(self, width: int) -> Text:
        parts = []
        if self.total:
            filled = min(BAR, BAR * self.done // self.total)
            parts += [Text.assemble(("━" * filled, "green"), ("─" * (BAR - filled), "dim"))]
            parts += [Text(f"{self.done}/{self.total}")]
        elif self.done:
            parts += [Text(f"{self.done} done")]
        parts += [Text(_span(self.in_phase()), style="dim"), *([Text(self.text)] if self.text else [])]
        return _row(self.name, parts, width)

    def _held_out_line(self, width: int) -> Text:
        last, first = self.evaluations[-1], self.evaluations[0]
        parts = [Text.assemble((_estimate(last, "avg@"), "bold"), f" after {last.get('iteration', 0)}")]
        if len(self.evaluations) > 1:
            full = Text(f"first {_estimate(first, 'avg@', name=False)}", style="dim")
            brief = Text(f"first {_estimate(first, 'avg@', name=False, interval=False)}", style="dim")
            parts += [full if LABEL + parts[0].cell_len + 2 + full.cell_len <= width else brief]
        return _row("held out", [*parts, Text(_estimate(last, "pass@", interval=False), style="dim")], width)

    def _turn_lines(self, width: int) -> Iterator[Text]:
        shown: list[Mapping[str, Any] | None] = list(self.turns)
        if len(shown) > (fitting := max(3, (width - LABEL + 1) // CELL)):
            shown = [*self.turns[: fitting - 2], None, self.turns[-1]]
        for label, key in (("turn", "turn"), ("clipped", "clip_fraction"), ("M spread", "carry_sd")):
            if key != "turn" and all(_number(turn, key) is None for turn in self.turns):
                continue
            row = Text.assemble((f"{label:<{LABEL}}", "dim"))
            for turn in shown:
                cell = "…" if turn is None else f"t{turn['turn']}" if key == "turn" else _short(_number(turn, key))
                row.append(f"{cell:<{CELL}}", style="dim" if key == "turn" else None)
            row.rstrip()
            yield _unbroken(row)


class LiveDisplay:
    """Redraws the board in place; notes scroll by above it."""

    def __init__(self, console: Console, board: Board) -> None:
        self._console, self._board = console, board
        self._live = Live(board, console=console, refresh_per_second=4)
        self._live.start()

    def on_phase(self, name: str, total: int | None = None) -> None:
        self._board.on_phase(name, total)

    def on_progress(self, done: int, text: str = "") -> None:
        self._board.on_progress(done, text)

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._board.on_record(record)

    def on_note(self, text: str) -> None:
        self._console.print(Text.assemble(("note: ", "bold yellow"), _printable(text)))

    def close(self) -> None:
        self._board.on_phase("")
        self._live.stop()


class PlainDisplay:
    """One line for what happened, and none for what did not: for logs, pipes and terminals that can do little."""

    def __init__(self, console: Console, board: Board) -> None:
        self._console, self._board = console, board
        self._every = 1 if board.iterations <= 20 else max(1, round(board.iterations / 50))
        self._said_phase = self._closed = False
        self._told: set[str] = set()
        self._say(f"{board.title}: {board.iterations} iterations")

    def on_phase(self, name: str, total: int | None = None) -> None:
        self._say_if_it_lasts()
        if not self._board.begun and self._board.iteration:
            self._say(f"goes on after iteration {self._board.iteration}")
        self._board.on_phase(name, total)
        self._said_phase = False

    def on_progress(self, done: int, text: str = "") -> None:
        self._board.on_progress(done, text)
        self._say_if_it_lasts()

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._board.on_record(record)
        if not self._board.begun:
            return  # it was said when it happened
        kind, iteration = record.get("kind"), record.get("iteration", 0)
        if kind == "evaluation":
            failures = f", {record['failures']} failed" if record.get("failures") else ""
            estimates = f"{_estimate(record, 'avg@')}, {_estimate(record, 'pass@')}"
            self._say(f"{self._time()} evaluation after iteration {iteration}: {estimates}{failures}")
        elif kind == "iteration" and (iteration % self._every == 0 or iteration in (1, self._board.iterations)):
            self._say(f"{self._time()} iteration {iteration} of {self._board.iterations}: {self._iteration(record)}")

    def on_note(self, text: str) -> None:
        self._say(f"note: {text}")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._say_if_it_lasts()
        self._say(f"{self._time()} ended after iteration {self._board.iteration} of {self._board.iterations}")

    def _iteration(self, record: Mapping[str, Any]) -> str:
        turns = record.get("turns") or ()
        clipped = [value for turn in turns if (value := _number(turn, "clip_fraction")) is not None]
        spread = [value for turn in turns if (value := _number(turn, "carry_sd")) is not None]
        rate, left = _number(record.get("timings"), "tokens_per_second"), self._board.left()
        parts = [
            f"success {record['success']:.2f}",
            f"reward {record['reward_mean']:.2f}" if record["reward_mean"] != record["success"] else "",
            f"clipped {sum(clipped) / len(clipped):.2f}" if clipped else "",
            f"M spread {max(spread):.2f}" if spread else "",
            f"{rate:.0f} tokens/s" if rate is not None else "",
            f"{_span(left)} left" if left is not None and self._board.iteration < self._board.iterations else "",
        ]
        return ", ".join(part for part in parts if part)

    def _say_if_it_lasts(self) -> None:
        # What comes in every iteration is told once; after that only if it takes unusually long.
        lasting = SECONDS_THAT_LAST * (1 if self._board.name not in self._told else 6)
        if self._board.name and not self._said_phase and self._board.in_phase() >= lasting:
            self._said_phase = True
            self._told.add(self._board.name)
            done = f"{self._board.done} of {self._board.total}" if self._board.total else f"{self._board.done}"
            text = f", {self._board.text}" if self._board.text else ""
            lasted = f"{_span(self._board.in_phase())} so far"
            self._say(f"{self._time()} {self._board.name}: {done} done, {lasted}{text}")

    def _time(self) -> str:
        return f"[{_span(self._board.elapsed())}]"

    def _say(self, line: str) -> None:
        encoding = self._console.encoding
        line = _printable(line).encode(encoding, "replace").decode(encoding)
        self._console.print(Text(line), soft_wrap=True)


def picture(
    metrics: Sequence[Mapping[str, Any]], path: Path, *, title: str = "seeupo train", iterations: int, width: int = 80
) -> None:
    """Draw the display as it stood at the end of these records (the lines of metrics.jsonl) into an SVG file."""
    now = 0.0
    board = Board(title, iterations, lambda: now)
    for record in metrics:
        timings = record.get("timings") or {}
        now += timings.get("total") or sum(timings[key] for key in ("collect", "update", "seconds") if key in timings)
        board.on_record(record)
    board.text = ""
    console = Console(file=StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor")
    console.print(board)
    # A picture in a repository loads nothing from elsewhere, not even a font.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=board.title), flags=re.DOTALL)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, svg)


def _row(label: str, parts: Sequence[Text], width: int) -> Text:
    """A label and as many parts as fit; those that matter most come first."""
    row = Text.assemble((f"{label:<{LABEL - 1}} ", "dim"))
    for number, part in enumerate(parts):
        if number and row.cell_len + 2 + part.cell_len > width:
            break
        row.append("  " if number else "").append_text(part)
    return _unbroken(row)


def _unbroken(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _curve(values: Sequence[float], width: int) -> str:
    """One block for each value, or for the mean of neighbours if there are more than `width`.

    The scale is always 0 to 1, so that a curve never looks better than it is.
    """
    if len(values) > width:
        edges = [round(place * len(values) / width) for place in range(width + 1)]
        parts = [values[first:last] for first, last in pairwise(edges)]
        values = [sum(part) / len(part) for part in parts]
    return "".join(BLOCKS[round(min(1.0, max(0.0, value)) * (len(BLOCKS) - 1))] for value in values)


def _estimate(record: Mapping[str, Any], prefix: str, *, name: bool = True, interval: bool = True) -> str:
    """An evaluation's avg@k or pass@k, such as "avg@4 0.41 [0.36, 0.46]"."""
    found = next((key for key in record if key.startswith(prefix)), None)
    if found is None or record[found] is None:
        return f"{found or prefix + 'k'} unknown"
    value = record[found]
    bounds = f" [{value['low']:.2f}, {value['high']:.2f}]" if interval else ""
    return f"{found + ' ' if name else ''}{value['value']:.2f}{bounds}"


def _number(values: Mapping[str, Any] | None, key: str) -> float | None:
    value = (values or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def _short(value: float | None) -> str:
    """A number in four characters."""
    if value is None:
        return "-"
    for limit, form in ((9.995, ".2f"), (99.95, ".1f"), (9999.5, ".0f")):
        if value < limit:
            return f"{value:{form}}"
    return f"{value:.0e}".replace("e+0", "e")


def _span(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _printable(text: str) -> str:
    """Text without control codes, whoever wrote it; a terminal obeys them."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def _one_line(text: str) -> str:
    return _printable(text).replace("\n", " ")
