import io
import re
from xml.etree import ElementTree

import pytest
from rich.console import Console

from seeupo.cli.train_display import Board, LiveDisplay, PlainDisplay, make_display, picture

ESCAPE = "\x1b"


class Clock:
    """Time that passes when a test says so."""

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


def little(number: int) -> dict:
    """An iteration with nothing but what every one has."""
    return {"kind": "iteration", "iteration": number, "reward_mean": 0.5, "success": 0.5, "episodes": 8, "timings": {}}


def evaluation(number: int, value: float = 0.4, **changes) -> dict:
    estimate = {"value": value, "low": value - 0.05, "high": value + 0.05}
    return {
        "kind": "evaluation", "iteration": number, "avg@4": estimate, "pass@4": {**estimate, "value": 0.7},
        "episodes": 8, "failures": 0, "timings": {"seconds": 2.0}, **changes,
    }  # fmt: skip


def board(**options) -> Board:
    return Board("pocket", options.get("iterations", 100), options.get("clock", Clock()))


def drawn(what: Board, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    console.print(what)
    return [line.rstrip() for line in console.export_text().splitlines()]


def line(lines: list[str], label: str) -> str:
    (found,) = [text for text in lines if text.startswith(label)]
    return found


def plain(iterations: int = 100) -> tuple[PlainDisplay, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    display = make_display(Console(file=out, width=60), title="pocket", iterations=iterations, clock=clock)
    assert isinstance(display, PlainDisplay)
    return display, out, clock


def test_the_board_shows_turns_in_their_own_order():
    shown = board()
    shown.on_record(iteration(1))
    lines = drawn(shown)
    assert line(lines, "turn").split() == ["turn", "t0", "t1", "t2"]
    assert line(lines, "clipped").split() == ["clipped", "0.10", "0.11", "0.02"]
    assert line(lines, "M spread").split() == ["M", "spread", "12.3", "0.21", "0.00"]


def test_labels_are_dim_and_what_they_say_is_not():
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="truecolor")
    shown = board()
    shown.on_phase("collecting", 8)
    shown.on_progress(4)
    shown.on_record(evaluation(0))
    shown.on_record(iteration(1))
    segments = [segment for line in console.render_lines(shown) for segment in line if segment.text.strip()]
    dim = {segment.text.strip() for segment in segments if segment.style and segment.style.dim}
    labels = {"collecting", "success", "held out", "turn", "clipped", "M spread", "time"}
    assert dim == labels | {"─" * 12, "0:00", "pass@4 0.70", "t0", "t1", "t2"}


def test_the_board_shows_the_last_and_the_first_evaluation():
    shown = board()
    for number, value in ((0, 0.1), (10, 0.3), (20, 0.6)):
        shown.on_record(evaluation(number, value))
    found = line(drawn(shown), "held out")
    assert "avg@4 0.60 [0.55, 0.65] after 20" in found
    assert "first 0.10 [0.05, 0.15]" in found
    assert "first 0.10" in line(drawn(shown, width=60), "held out")


def test_an_evaluation_without_a_scored_task_is_shown_as_unknown():
    shown = board()
    shown.on_record(evaluation(0, **{"avg@4": None}))
    assert "avg@4 unknown" in line(drawn(shown), "held out")


def test_the_curve_is_drawn_from_0_to_1_and_shows_the_whole_run():
    shown = board()
    for number in range(30):
        shown.on_record(iteration(number, 1.0 if number == 29 else 0.0))
    assert line(drawn(shown), "success").split() == ["success", "▁" * 29 + "█", "1.00"]
    for number in range(30, 80):
        shown.on_record(iteration(number, 1.0 if number >= 70 else 0.0))
    # Two iterations a block by now.
    assert line(drawn(shown), "success").split() == ["success", "▁" * 14 + "▅" + "▁" * 20 + "█" * 5, "1.00"]


def test_the_phase_has_a_bar_and_time_left_is_reckoned_from_the_pace():
    clock = Clock()
    shown = board(clock=clock, iterations=10)
    clock.now = 100.0
    shown.on_phase("collecting", 8)
    clock.now = 110.0
    shown.on_record(iteration(1))
    shown.on_phase("collecting", 8)
    clock.now = 113.0
    shown.on_progress(4, "one\nretried")
    lines = drawn(shown)
    # 9 iterations of 10 s are left, of which 3 s have passed; what came before the first does not count.
    assert "1:53 elapsed" in line(lines, "time")
    assert "1:27 left" in line(lines, "time")
    assert "2,500 tokens/s" in line(lines, "time")
    phase = line(lines, "collecting")
    assert phase.count("━") == phase.count("─") == 12
    assert phase.endswith("4/8  0:03  one retried")


@pytest.mark.parametrize("width", [20, 40, 60, 100])
@pytest.mark.parametrize("turns", [1, 10, 40])
def test_no_line_is_wider_than_the_terminal_and_none_wraps(width, turns):
    shown = board()
    shown.on_phase("demonstrations", 1000)
    shown.on_progress(123, "a text that is much longer than any line that we have to write it on " * 3)
    shown.on_record(evaluation(0))
    shown.on_record(evaluation(10))
    values = [{"turn": number, "clip_fraction": 0.1, "carry_sd": 123456.0} for number in range(turns)]
    shown.on_record(iteration(10, turns=values))
    lines = drawn(shown, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 8
    if width == 60 and turns == 40:
        assert line(lines, "turn").split() == ["turn", "t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "…", "t39"]


def test_a_record_with_little_in_it_is_enough():
    shown = board()
    shown.on_record(little(1))
    shown.on_record({"kind": "warm_start", "iteration": 0, "step": 5, "loss": 1.5, "timings": {}})
    shown.on_phase("updating")
    assert drawn(shown)[0].endswith("iteration 1 of 100")


def test_a_terminal_gets_a_live_display_with_notes_above_it():
    console = Console(file=io.StringIO(), width=80, record=True, force_terminal=True)
    display = make_display(console, title="pocket", iterations=3, clock=Clock())
    assert isinstance(display, LiveDisplay)
    display.on_phase("collecting", 8)
    display.on_progress(4)
    display.on_record(iteration(1))
    display.on_note("[bold]no markup[/bold] :smile: \x1b[31mno codes\x07")
    display.close()
    text = console.export_text()
    assert "note: [bold]no markup[/bold] :smile:  [31mno codes" in text
    assert ESCAPE not in text
    last = text[text.rindex("pocket") :]
    assert "iteration 1 of 3" in last
    assert "collecting" not in last
    assert text.index("note:") < text.rindex("iteration 1 of 3")


def test_without_colour_there_is_none(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="truecolor")
    shown = board()
    shown.on_phase("collecting", 8)
    shown.on_record(iteration(1))
    console.print(shown)
    # 1, 2 and 0 are bold, dim and neither.
    assert set(re.findall(rf"{ESCAPE}\[([0-9;]*)m", out.getvalue())) <= {"0", "1", "2", "1;2", ""}


@pytest.mark.parametrize(
    "console",
    [
        Console(file=io.StringIO()),
        Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"}),
        Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=True),
    ],
    ids=["a pipe", "a dumb terminal", "no Unicode"],
)
def test_what_cannot_draw_gets_plain_lines(console):
    display = make_display(console, title="naïve", iterations=3, clock=Clock())
    assert isinstance(display, PlainDisplay)
    display.on_note("\u2013 \ud800")
    display.close()


def test_plain_lines_are_one_for_each_record_and_never_wrapped():
    display, out, clock = plain(iterations=2)
    display.on_phase("evaluation")
    display.on_record(evaluation(0, failures=3))
    display.on_phase("collecting", 8)
    clock.now = 5.0
    display.on_record(iteration(1))
    display.on_record(little(2))
    display.on_note("[bold]look[/bold] \x1b[31m" + "long " * 30)
    display.close()
    display.close()
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


def test_what_is_heard_again_when_a_run_goes_on_is_not_said_again_and_took_no_time():
    display, out, clock = plain(iterations=12)
    for number in range(1, 11):
        display.on_record(iteration(number))
    display.on_record(evaluation(10))
    display.on_phase("collecting")
    clock.now = 4.0
    display.on_record(iteration(11))
    assert out.getvalue().splitlines()[1:] == [
        "goes on after iteration 10",
        "[0:04] iteration 11 of 12: success 0.50, clipped 0.08, M spread 12.34, 2500 tokens/s, 0:04 left",
    ]


@pytest.mark.parametrize(("iterations", "lines"), [(20, 20), (50, 50), (1000, 51)])
def test_plain_lines_are_few_in_a_long_run(iterations, lines):
    display, out, _ = plain(iterations)
    display.on_phase("collecting")
    for number in range(1, iterations + 1):
        display.on_record(iteration(number))
    shown = re.findall(r"iteration (\d+) of", out.getvalue())
    assert len(shown) == lines
    assert shown[0] == "1"
    assert shown[-1] == str(iterations)


def test_a_phase_has_a_plain_line_only_if_it_lasts_and_only_one():
    display, out, clock = plain()
    display.on_phase("collecting", 8)
    clock.now = 9.0
    display.on_progress(2)
    display.on_phase("updating")
    clock.now = 18.0
    display.on_phase("warm start", 100)
    for now, done in ((25.0, 30), (29.0, 50), (60.0, 99)):
        clock.now = now
        display.on_progress(done, "loss 1.02")
    display.on_phase("evaluation")
    clock.now = 80.0
    display.on_phase("collecting")
    assert out.getvalue().splitlines()[1:] == [
        "[0:29] warm start: 50 of 100 done, 0:11 so far, loss 1.02",
        "[1:20] evaluation: 0 done, 0:20 so far",
    ]


def test_a_phase_of_every_iteration_is_told_once_unless_it_takes_unusually_long():
    display, out, clock = plain()
    for _ in range(3):
        display.on_phase("collecting", 8)
        clock.now += 12.0
        display.on_progress(1)
    display.on_phase("collecting", 8)
    clock.now += 61.0
    display.on_progress(2)
    assert out.getvalue().splitlines()[1:] == [
        "[0:12] collecting: 1 of 8 done, 0:12 so far",
        "[1:37] collecting: 2 of 8 done, 1:01 so far",
    ]


def test_a_picture_shows_the_end_of_a_run_and_loads_nothing(tmp_path):
    parts = {"collect": 0.5, "update": 0.5, "tokens_per_second": 2500.0}
    metrics = [
        evaluation(0, 0.1),
        *[iteration(number, 0.9) for number in range(1, 5)],
        iteration(5, 0.9, timings=parts),
        evaluation(5, 0.8),
    ]
    picture(metrics, tmp_path / "pictures" / "run.svg", title="a run", iterations=5)
    text = (tmp_path / "pictures" / "run.svg").read_text()
    ElementTree.fromstring(text)
    assert "url(http" not in text
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["run.svg"]
    shown = "".join(ElementTree.fromstring(text).itertext()).replace("\xa0", " ")
    assert "iteration 5 of 5" in shown
    assert "avg@4 0.80 [0.75, 0.85]" in shown
    # 5 iterations of 1 s and two evaluations of 2 s.
    assert "0:09 elapsed" in shown
