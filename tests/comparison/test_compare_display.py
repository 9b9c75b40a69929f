"""The progress display of a comparison."""

from io import StringIO
from types import SimpleNamespace

from comparison.small_study import made_result
from seeupo.comparison.compare_display import CompareDisplay
from seeupo.utils.terminal import Terminal


def shown(**options):
    """Return what the display of a short comparison prints."""
    output = StringIO()
    with CompareDisplay(Terminal(file=output, width=100, **options), {"warm starts": 2, "runs": 2}) as display:
        display.on_phase("warm starts", 2, 2)
        display.on_phase("runs", 2, 0)
        display.on_text("grpo-5-abc", "iteration 1\x1b[2J")
        display.on_result("grpo-5-abc", made_result([0.25, 0.5]))
        display.on_text("ppo-5-abc", "iteration 1")
        display.on_result("ppo-5-abc", made_result([], diverged="nan"))
    return output.getvalue()


def test_finished_runs_are_lines_without_a_terminal():
    assert shown().splitlines() == ["3 of 4: grpo-5, last reward 0.500, 6 s", "4 of 4: ppo-5, diverged, 6 s"]


def test_long_runs_are_lines_every_two_minutes_without_a_terminal():
    output, clock = StringIO(), SimpleNamespace(now=0.0)
    with CompareDisplay(Terminal(file=output, width=60), {"runs": 2}, clock=lambda: clock.now) as display:
        for clock.now in (10, 119, 121, 200, 240):
            display.on_text("grpo-5-abc", f"iteration {clock.now}\x1b[2J")
        display.on_result("grpo-5-abc", made_result([0.25, 0.5]))
        for clock.now in (359, 360):
            display.on_text("ppo-5-abc", f"iteration {clock.now}")
    assert output.getvalue().splitlines() == [
        r"0 of 2 done; grpo-5: iteration 121\x1b[2J",
        "1 of 2: grpo-5, last reward 0.500, 6 s",
        "1 of 2 done; ppo-5: iteration 360",
    ]


def test_terminal_shows_progress_and_no_control_characters_of_others():
    text = shown(force_terminal=True, _environ={"TERM": "xterm-256color"})
    assert "iteration 1\\x1b[2J" in text or "iteration 1\x1b[2J" not in text
    assert "3 of 4: grpo-5" in text
