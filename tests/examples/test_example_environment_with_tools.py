"""The example `environment_with_tools.py` is a sound environment, and its tools are shown to the model."""

import json

import environment_with_tools
import pytest

from seeupo.envs.pool.pool import EnvPool
from seeupo.evaluation.scripted import check_environment
from seeupo.rl import Attempt, Runner, SamplingParameters, load_policy

FACTORY = environment_with_tools.WarehouseFactory()
TASK = FACTORY.tasks("train")[0]


def written(name, **arguments):
    return f"I will. <tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_the_expert_moves_every_item_and_a_no_op_policy_none():
    with EnvPool(FACTORY) as pool:
        results = list(check_environment(pool, FACTORY.splits, tasks=50))
    assert [result.problem for result in results] == [None] * 4
    assert {result.policy for result in results} == {"expert", "no-op"}


def test_the_tools_are_in_the_prompt():
    with EnvPool(FACTORY) as pool:
        policy = load_policy("tiny", tiny={"width": 16, "layers": 1, "heads": 2, "context": 4096})
        runner = Runner(policy, pool, parameters=SamplingParameters(max_tokens=2), max_turns=1)
        (trajectory,) = runner.run([Attempt("a", "a", TASK, seed=0)])
    prompt = policy.tokenizer.decode(trajectory.turns[0].prompt_ids)
    for name in ("find_item", "move_item", "Find the warehouse"):
        assert name in prompt


@pytest.mark.parametrize(
    "text",
    [
        "",
        "find_item",
        "<tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>" + "[" * 10_000,
        written("drop_table", item="lamp"),
        written("find_item", item=["lamp"]),
        written("move_item", item="lamp", to="east"),
        written("move_item", item="lamp", to={"a": 1}),
        '<tool_call>{"name": "find_item", "arguments": 3}</tool_call>',
    ],
)
def test_a_wrong_call_is_answered_with_an_error(text):
    env = FACTORY.make()
    env.reset(TASK, seed=0)
    result = env.step(text)
    assert result.messages[0].content.startswith("Error: ")
    assert not result.done
    assert env.score() == 0.0


def test_moving_the_wrong_item_is_no_success():
    env = FACTORY.make()
    env.reset(TASK, seed=0)
    other = next(item for item in environment_with_tools.ITEMS if item != env.wanted)
    assert env.step(written("move_item", item=other, to="north")).terminated
    assert env.score() == 0.0
