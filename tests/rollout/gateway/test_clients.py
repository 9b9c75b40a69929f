"""Programs on the clients of OpenAI and Anthropic that call tools, with and without streaming."""

import json

import anthropic
import pytest

from rollout.gateway.scripted import one_path, run, tool_call

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
DESCRIPTION = {"name": "add", "description": "Add two integers."}
FUNCTION = {"type": "function", "function": {**DESCRIPTION, "parameters": SCHEMA}}
QUESTION = {"role": "user", "content": "What is 2 + 40?"}
CALLS = f"I add «ä».\n{tool_call('add', a=2, b=40)}\n{tool_call('add', b=1, a=1)}"
SCRIPTS = [
    [CALLS, "It is 42."],
    [tool_call("add", a=2, b=40), tool_call("add", a=1, b=1), "It is 42."],
    [f"<think>\nHow?\n</think>\n\n{CALLS}", "<think>\nSo.\n</think>\n\nIt is 42."],
]


def added(arguments, results):
    results.append(arguments["a"] + arguments["b"])
    return str(results[-1])


async def on_chat_completions(client, stream, results):
    messages = [QUESTION]
    while True:
        arguments = {"model": "policy", "messages": messages, "tools": [FUNCTION], "temperature": 1}
        if stream:
            async with client.chat.completions.stream(
                **arguments, stream_options={"include_usage": True}
            ) as events:  # fmt: skip
                completion = await events.get_final_completion()
        else:
            completion = await client.chat.completions.create(**arguments)
        message = completion.choices[0].message
        assert completion.choices[0].finish_reason == ("tool_calls" if message.tool_calls else "stop")
        assert completion.usage.completion_tokens > 0
        if not message.tool_calls:
            return message.content
        messages.append(message.to_dict())
        for call in message.tool_calls:
            result = added(json.loads(call.function.arguments), results)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def on_responses(client, stream, results):
    items = [QUESTION]
    tools = [{"type": "function", **FUNCTION["function"]}]
    while True:
        arguments = {"model": "policy", "input": items, "tools": tools, "store": False}
        if stream:
            async with client.responses.stream(**arguments) as events:
                response = await events.get_final_response()
        else:
            response = await client.responses.create(**arguments)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        items += [item.to_dict() for item in response.output]
        for call in calls:
            result = added(json.loads(call.arguments), results)
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


async def on_messages(client, stream, results):
    messages = [QUESTION]
    tools = [{**DESCRIPTION, "input_schema": SCHEMA}]
    address = str(client.base_url).removesuffix("/v1/")
    async with anthropic.AsyncAnthropic(base_url=address, api_key=client.api_key) as claude:
        while True:
            arguments = {"model": "policy", "max_tokens": 1000, "messages": messages, "tools": tools}
            if stream:
                async with claude.messages.stream(**arguments) as events:
                    message = await events.get_final_message()
            else:
                message = await claude.messages.create(**arguments)
            calls = [block for block in message.content if block.type == "tool_use"]
            assert message.stop_reason == ("tool_use" if calls else "end_turn")
            if not calls:
                return message.content[0].text
            messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
            blocks = [
                {"type": "tool_result", "tool_use_id": call.id, "content": added(call.input, results)} for call in calls
            ]
            messages.append({"role": "user", "content": blocks})


@pytest.mark.parametrize("script", SCRIPTS, ids=["text and calls", "one after another", "thoughts"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", [on_chat_completions, on_responses, on_messages])
def test_a_program_calls_tools_and_sends_its_history_as_it_was_sampled(api, stream, script):
    results = []

    async def solve(task, client):
        return float(await api(client, stream, results) == "It is 42.")

    trajectory = run(solve, *script)["a"]
    assert trajectory.failure is None
    assert (trajectory.score, results) == (1.0, [42, 2])
    assert one_path(trajectory) == [True] * (len(script) - 1)
    assert [turn.policy_version for turn in trajectory.turns] == [3] * len(script)
    assert trajectory.turns[0].behavior_logprobs[:2] == (-0.5, -0.51)


def test_programs_that_write_ids_into_their_prompts_give_the_same_trajectories():
    async def solve(task, client):
        arguments = {"model": "policy", "tools": [FUNCTION]}
        completion = await client.chat.completions.create(messages=[QUESTION], **arguments)
        text = completion.id + completion.choices[0].message.tool_calls[0].id
        await client.chat.completions.create(messages=[QUESTION, {"role": "user", "content": text}], **arguments)
        return 1.0

    first, second = (run(solve, *SCRIPTS[1])["a"] for _ in range(2))
    assert first.turns == second.turns
