import re

import click
import pytest
from click.testing import CliRunner

from envs.counting import CountingFactory
from seeupo.cli import main
from seeupo.cli.play import play, present
from seeupo.cli.terminal import echo_text
from seeupo.envs.pool.pool import EnvPool
from seeupo.types import Message, StepResult, Tool, ToolCall


def test_an_episode_is_played_by_hand_and_scored():
    lines, actions = [], iter(["up", "up", "stop"])
    with EnvPool(CountingFactory()) as pool:
        task = pool.tasks("easy")[1]
        assert play(pool.env(), task, seed=0, show=lines.append, ask=lambda: next(actions)) == (1.0, 3)
    assert lines == [
        "[user] say up 2 times, then stop",
        "[user] 1",
        "[user] 2",
        "[user] 2",
        "[the episode has ended]",
    ]


def test_an_aborted_episode_is_scored():
    with EnvPool(CountingFactory()) as pool:
        assert play(pool.env(), pool.tasks("easy")[0], seed=0, show=lambda _: None, ask=lambda: None) == (0.0, 0)


def test_everything_that_a_step_returns_is_shown():
    lines = []
    tool = Tool("pay", "Pay a contact. At once.", {"properties": {"who": {}, "note": {}}, "required": ["who"]})
    message = Message("assistant", "done", (ToolCall("pay", {"who": "ann"}),))
    present(StepResult((message,), tools=(tool,), reward=0.5, truncated=True), lines.append)
    assert lines == [
        "[tools offered: 1]",
        "  pay(who, note?)  Pay a contact",
        "[assistant] done",
        "  calls pay({'who': 'ann'})",
        "[reward of this step: 0.5]",
        "[a limit ended the episode]",
    ]


@pytest.mark.parametrize("schema", [{"required": 5}, {"required": [["a"]]}, {"properties": 5}, {"properties": None}])
def test_tools_with_malformed_parameters_are_shown(schema):
    lines = []
    present(StepResult((), tools=(Tool("pay", "Pay.", {"properties": {"who": {}}, **schema}),)), lines.append)
    assert lines[1] == ("  pay(who?)  Pay." if "required" in schema else "  pay()  Pay.")


def test_what_an_environment_says_does_not_control_the_terminal():
    """It cannot move the cursor, hide or reorder text, in any text that it returns."""
    hostile = "\x1b]0;x\x07\x1b[2J\x9b1m\r\b\u202e\u2066\u200b\u2028\U000e0041\ud800"
    tool = Tool(hostile, hostile, {"properties": {hostile: {}}, "required": [hostile]})
    message = Message("user", hostile, (ToolCall(hostile, {hostile: hostile}),))

    @click.command()
    def command():
        present(StepResult((message,), tools=(tool,)), echo_text)

    shown = CliRunner().invoke(command).output
    assert r"\x1b]0;x\x07\x1b[2J\x9b1m\r\x08\u202e" in shown
    assert all(letter == "\n" or letter.isprintable() for letter in shown)


def test_hostile_input_is_an_action_like_others():
    typed = b"\0\xff\n\x1b[2J\n" + b"x" * 10**6 + b"\n```py\nnever closed\n"
    done = CliRunner().invoke(main, ["envs", "play", "pocket"], input=typed)
    assert done.exit_code == 0, done.output
    assert "score 0 after 3 actions" in done.output


def test_the_command_plays_in_the_terminal():
    done = CliRunner().invoke(main, ["envs", "play", "pocket"], input="nonsense\n")
    assert done.exit_code == 0, done.output
    assert "task " in done.output
    assert "score 0 after 1 actions" in done.output


def test_a_code_block_is_read_to_its_closing_fence():
    done = CliRunner().invoke(main, ["envs", "play", "pocket"], input="```python\nprint(1)\n```\n")
    assert done.exit_code == 0, done.output
    assert "score 0 after 1 actions" in done.output


def test_an_unknown_task_lists_some_ids_and_counts_the_others():
    done = CliRunner().invoke(main, ["envs", "play", "pocket", "--task", "nope"])
    assert done.exit_code == 1
    assert re.search(r"has no task 'nope'; available: (\S+, ){50}\.\.\. and \d+ more$", done.output.strip())
