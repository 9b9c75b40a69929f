"""The example `agent_openai.py` finishes its tasks with a policy that calls the tool, and its command is valid."""

import agent_openai
import pytest
from click.testing import CliRunner

from rollout.gateway.scripted import run
from seeupo.cli import main
from seeupo.types import Task

CALL = '<tool_call>{"name": "find_item", "arguments": {"item": "desk"}}</tool_call>'


@pytest.mark.parametrize(
    ("script", "score", "turns"),
    [
        ((CALL, "south"), 1.0, 2),
        ((CALL, "north"), 0.0, 2),
        (("South",), 1.0, 1),
        (("<tool_call>{bad</tool_call>",), 0.0, 1),
    ],
)
def test_the_program_answers_with_the_result_of_its_tool(script, score, turns):
    trajectory = run(agent_openai.solve, *script, tasks=(Task("desk", "train", payload={"item": "desk"}),))["desk"]
    assert (trajectory.failure, trajectory.score, len(trajectory.turns)) == (None, score, turns)


def test_the_command_of_the_example_is_valid(monkeypatch):
    monkeypatch.chdir(agent_openai.__file__.rpartition("/examples/")[0])
    command = next(line for line in agent_openai.__doc__.splitlines() if "seeupo train" in line).split()
    result = CliRunner().invoke(main, [*command[1:], "--model.name", "tiny", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "tasks: 32 training tasks, 8 held-out tasks" in result.output
