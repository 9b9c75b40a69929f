import io
import re
import sys

import pytest

from seeupo.errors import UserError
from seeupo.training.train_display import (
    Display,
    LiveDisplay,
    NotebookDisplay,
    PlainDisplay,
    make_display,
    result_line,
)
from seeupo.utils.terminal import Terminal

ESCAPE = "\x1b"


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def iteration(number: int, success: float = 0.5, **changes) -> dict:
    turns = [
        {"turn": 2, "clip_fraction": 0.02, "carry_sd": 0.0},
        {"turn": 1, "clip_fraction": 0.11, "carry_sd": 0.21},
        {"turn": 0, "clip_fraction": 0.1, "carry_sd": 12.34},
    ]
    record = {
        "kind": "iteration", "iteration": number, "reward_mean": success, "success": success, "episodes": 8,
        "turns": turns, "timings": {"total": 1.0, "tokens_per_second": 2500.4},
    }  # fmt: skip
    return {**record, **changes}


def minimal(number: int) -> dict:
    """Return an iteration with only the keys that every one has."""
    return {"kind": "iteration", "iteration": number, "reward_mean": 0.5, "success": 0.5, "episodes": 8, "timings": {}}


def evaluation(number: int, value: float = 0.4, **changes) -> dict:
    estimate = {"value": value, "low": value - 0.05, "high": value + 0.05}
    return {
        "kind": "evaluation", "iteration": number, "avg@4": estimate, "pass@4": {**estimate, "value": 0.7},
        "episodes": 8, "failures": 0, "timings": {"seconds": 2.0}, **changes,
    }  # fmt: skip


def named(display: Display, iterations: int = 100) -> Display:
    """Return the display of a run of this length."""
    display.title = "pocket"
    display.iterations = iterations
    return display


def make_status(*, iterations: int = 100, clock: Clock | None = None) -> Display:
    return named(Display(clock or Clock()), iterations)


def rendered(status: Display, width: int = 100) -> list[str]:
    console = Terminal(file=io.StringIO(), width=width, record=True, force_terminal=True)
    console.print(status)
    return [line.rstrip() for line in console.export_text().splitlines()]


def line(lines: list[str], label: str) -> str:
    (found,) = [text for text in lines if text.startswith(label)]
    return found


def plain(iterations: int = 100) -> tuple[PlainDisplay, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    display = named(make_display(Terminal(file=out, width=60), clock=clock), iterations)
    assert isinstance(display, PlainDisplay)
    return display, out, clock


def test_turns_are_shown_in_order():
    status = make_status()
    status.on_record(iteration(1))
    lines = rendered(status)
    assert line(lines, "turn").split() == ["turn", "t1", "t2", "t3"]
    assert line(lines, "clipped").split() == ["clipped", "0.10", "0.11", "0.02"]
    assert line(lines, "M spread").split() == ["M", "spread", "12.3", "0.21", "0.00"]


def test_labels_are_dim_and_values_are_not():
    console = Terminal(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor")
    status = make_status()
    status.on_phase("collecting", 8)
    status.on_progress(4)
    status.on_record(evaluation(0))
    status.on_record(iteration(1))
    segments = [segment for line in console.render_lines(status) for segment in line if segment.text.strip()]
    dim = {segment.text.strip() for segment in segments if segment.style and segment.style.dim}
    labels = {"collecting", "success", "held out", "turn", "clipped", "M spread", "time"}
    assert dim == labels | {"─" * 12, "0:00", "pass@4 0.70", "t1", "t2", "t3"}


def test_the_last_and_the_initial_evaluation_are_shown():
    status = make_status()
    for number, value in ((0, 0.1), (10, 0.3), (20, 0.6)):
        status.on_record(evaluation(number, value))
    found = line(rendered(status), "held out")
    assert "avg@4 0.60 [0.55, 0.65] after 20" in found
    assert "initial 0.10 [0.05, 0.15]" in found
    assert "initial 0.10" in line(rendered(status, width=60), "held out")


def test_an_evaluation_without_scores_is_shown_as_unknown():
    status = make_status()
    status.on_record(evaluation(0, **{"avg@4": None}))
    assert "avg@4 unknown" in line(rendered(status), "held out")


def test_the_sparkline_has_a_fixed_scale_and_covers_the_whole_run():
    status = make_status()
    for number in range(30):
        status.on_record(iteration(number, 1.0 if number == 29 else 0.0))
    assert line(rendered(status), "success").split() == ["success", "▁" * 29 + "█", "1.00"]
    for number in range(30, 80):
        status.on_record(iteration(number, 1.0 if number >= 70 else 0.0))
    # Each character is the mean of two iterations.
    assert line(rendered(status), "success").split() == ["success", "▁" * 14 + "▅" + "▁" * 20 + "█" * 5, "1.00"]


def test_progress_bar_and_estimate_of_the_time_left():
    clock = Clock()
    status = make_status(clock=clock, iterations=10)
    clock.now = 100.0
    status.on_phase("collecting", 8)
    clock.now = 110.0
    status.on_record(iteration(1))
    status.on_phase("collecting", 8)
    clock.now = 113.0
    status.on_progress(4, "one\nretried")
    lines = rendered(status)
    # 9 iterations of 10 s are left, of which 3 s have passed; the time before the first one does not count.
    assert "1:53 elapsed" in line(lines, "time")
    assert "1:27 left" in line(lines, "time")
    assert "2,500 tokens/s" in line(lines, "time")
    phase = line(lines, "collecting")
    assert phase.count("━") == phase.count("─") == 12
    assert phase.endswith(r"4/8  0:03  one\nretried")


@pytest.mark.parametrize("width", [20, 40, 60, 100])
@pytest.mark.parametrize("turns", [1, 10, 40])
def test_lines_fit_the_terminal(width, turns):
    status = make_status()
    status.on_phase("demonstrations", 1000)
    status.on_progress(123, "a text that is much longer than a line of the terminal " * 3)
    status.on_record(evaluation(0))
    status.on_record(evaluation(10))
    values = [{"turn": number, "clip_fraction": 0.1, "carry_sd": 123456.0} for number in range(turns)]
    status.on_record(iteration(10, turns=values))
    lines = rendered(status, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 8
    if width == 60 and turns == 40:
        assert line(lines, "turn").split() == ["turn", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "…", "t40"]


def test_minimal_records_are_accepted():
    status = make_status()
    status.on_record(minimal(1))
    status.on_record({"kind": "warm_start", "iteration": 0, "step": 5, "loss": 1.5, "timings": {}})
    status.on_phase("updating")
    assert rendered(status)[0].endswith("iteration 1 of 100")


def test_a_terminal_gets_a_live_display_with_notes_above_it():
    console = Terminal(file=io.StringIO(), width=80, record=True, force_terminal=True)
    display = named(make_display(console, clock=Clock()), 3)
    assert isinstance(display, LiveDisplay)
    display.on_phase("collecting", 8)
    display.on_progress(4)
    display.on_record(iteration(1))
    display.on_note("[bold]no markup[/bold] :smile: \x1b[31mno codes\x07")
    display.on_end()
    text = console.export_text()
    assert r"note: [bold]no markup[/bold] :smile: \x1b[31mno codes\x07" in text
    assert ESCAPE not in text
    last = text[text.rindex("pocket") :]
    assert "iteration 1 of 3" in last
    assert "collecting" not in last
    assert text.index("note:") < text.rindex("iteration 1 of 3")


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    console = Terminal(file=out, width=80, force_terminal=True, color_system="truecolor")
    status = make_status()
    status.on_phase("collecting", 8)
    status.on_record(iteration(1))
    console.print(status)
    # Codes 1, 2 and 0 are bold, dim and reset.
    assert set(re.findall(rf"{ESCAPE}\[([0-9;]*)m", out.getvalue())) <= {"0", "1", "2", "1;2", ""}


@pytest.mark.parametrize(
    "console",
    [
        Terminal(file=io.StringIO()),
        Terminal(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"}),
        Terminal(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace"), force_terminal=True),
    ],
    ids=["pipe", "dumb-terminal", "no-unicode"],
)
def test_limited_consoles_get_plain_lines(console):
    display = make_display(console, clock=Clock())
    assert isinstance(display, PlainDisplay)
    display.on_note("\u2013 \ud800")
    display.on_end()


def test_plain_lines_are_one_per_record_and_never_wrap():
    display, out, clock = plain(iterations=2)
    display.on_phase("evaluation")
    display.on_record(evaluation(0, failures=3))
    display.on_phase("collecting", 8)
    clock.now = 5.0
    display.on_record(iteration(1))
    display.on_record(minimal(2))
    display.on_note("[bold]look[/bold] \x1b[31m" + "long " * 30)
    display.on_end()
    lines = out.getvalue().splitlines()
    assert lines[:4] == [
        "pocket: 2 iterations",
        "[0:00] evaluation after iteration 0: avg@4 0.40 [0.35, 0.45], pass@4 0.70 [0.35, 0.45], 3 failed",
        "[0:05] iteration 1 of 2: success 0.50, clipped 0.08, M spread 12.34, 2500 tokens/s, 0:05 left",
        "[0:05] iteration 2 of 2: success 0.50",
    ]
    assert lines[4].startswith("note: [bold]look[/bold]")
    assert lines[5] == "[0:05] ended after iteration 2 of 2"
    assert len(lines) == 6
    assert ESCAPE not in out.getvalue()


def test_a_run_that_ends_with_an_error_prints_no_last_line():
    display, out, _ = plain(iterations=2)
    display.on_phase("evaluation")
    try:
        raise UserError("the environment is broken")
    except UserError:
        display.on_end()
    assert out.getvalue().splitlines() == ["pocket: 2 iterations"]


def test_replayed_records_of_a_resumed_run_are_neither_printed_nor_timed():
    display, out, clock = plain(iterations=12)
    display.on_resume([*map(iteration, range(1, 11)), evaluation(10)])
    display.on_phase("collecting")
    clock.now = 4.0
    display.on_record(iteration(11))
    assert out.getvalue().splitlines()[1:] == [
        "resumed after iteration 10",
        "[0:04] iteration 11 of 12: success 0.50, clipped 0.08, M spread 12.34, 2500 tokens/s, 0:04 left",
    ]


def test_a_run_that_is_resumed_in_its_warm_start_says_so():
    display, out, _ = plain(iterations=12)
    display.on_resume([{"kind": "warm_start", "iteration": 0, "step": 4, "loss": 0.5}])
    display.on_phase("warm start", 20)
    assert out.getvalue().splitlines()[1:] == ["resumed in the warm start"]


@pytest.mark.parametrize(("iterations", "lines"), [(20, 20), (50, 50), (1000, 51)])
def test_long_runs_print_few_plain_lines(iterations, lines):
    display, out, _ = plain(iterations)
    display.on_phase("collecting")
    for number in range(1, iterations + 1):
        display.on_record(iteration(number))
    printed = re.findall(r"iteration (\d+) of", out.getvalue())
    assert len(printed) == lines
    assert printed[0] == "1"
    assert printed[-1] == str(iterations)


def test_progress_is_printed_when_nothing_else_was_for_a_minute():
    display, out, clock = plain()
    display.on_phase("collecting", 8)
    for now, done in ((9.0, 2), (59.0, 3)):
        clock.now = now
        display.on_progress(done)
    clock.now = 60.0
    display.on_phase("warm start", 100)
    for now, done in ((71.0, 50), (100.0, 70), (130.0, 99), (131.0, 100)):
        clock.now = now
        display.on_progress(done, "loss 1.02")
    clock.now = 140.0
    display.on_record(iteration(1))
    display.on_phase("evaluation")
    for now, done in ((150.0, 1), (199.0, 5), (321.0, 6)):
        clock.now = now
        display.on_progress(done)
    assert out.getvalue().splitlines()[1:] == [
        "[1:11] warm start: 50 of 100 done, 0:11 so far, loss 1.02",
        "[2:11] warm start: 100 of 100 done, 1:11 so far, loss 1.02",
        "[2:20] iteration 1 of 100: success 0.50, clipped 0.08, M spread 12.34, 2500 tokens/s, 3:51:00 left",
        "[5:21] evaluation: 6 done, 3:01 so far",
    ]


class Notebook:
    """Stands in for the module `IPython.display`; keeps the HTML of all outputs."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, display: NotebookDisplay, *, display_id: bool) -> "Notebook":
        assert display_id
        self.update(display)
        return self

    def update(self, display: NotebookDisplay) -> None:
        self.shown.append(re.sub("<[^>]*>", "", display._repr_mimebundle_((), ())["text/html"]))


def test_a_notebook_gets_the_status_as_html_a_few_times_per_second(monkeypatch):
    notebook, clock = Notebook(), Clock()
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    display = named(make_display(Terminal(file=io.StringIO(), force_jupyter=True), clock=clock))
    assert isinstance(display, NotebookDisplay)
    assert "iteration 0 of 0" in notebook.shown[0]
    display.on_phase("collecting", 8)
    display.on_note("[bold]no markup[/bold] <b>\x1b[31mno codes")
    before = len(notebook.shown)
    for done in range(8):
        clock.now += 0.1
        display.on_progress(done)
    assert len(notebook.shown) - before == 2
    display.on_record(iteration(1))
    assert "iteration 1 of 100" in notebook.shown[-1]
    assert r"note: [bold]no markup[/bold] &lt;b&gt;\x1b[31mno codes" in notebook.shown[-1]
    assert "collecting" in notebook.shown[-1]
    display.on_end()
    assert "collecting" not in notebook.shown[-1]


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ((0.2, 0.9), "avg@4 on held-out tasks 0.20 -> 0.90 (1 iteration done; 2.0 minutes)"),
        ((0.2, None), "avg@4 on held-out tasks 0.20 -> unknown (1 iteration done; 2.0 minutes)"),
    ],
)
def test_the_result_line_shows_the_change_of_the_score(scores, text):
    estimates = [None if value is None else {"value": value, "low": value, "high": value} for value in scores]
    before, after = ({"avg@4": estimate} for estimate in estimates)
    summary = {
        "k": 4, "before": before, "after": after, "difference": {"avg@4": None},
        "reason": "1 iteration done", "seconds": {"collect": 60.0, "update": 60.0},
    }  # fmt: skip
    assert result_line(summary) == f"Inconclusive: {text}"
