"""What the three APIs accept, refuse and answer."""

import json
import re

import pytest

from seeupo.rollout.gateway import anthropic_messages, chat_completions, responses
from seeupo.rollout.gateway.calls import Answer, Call, CallError, parse_body
from seeupo.rollout.gateway.tool_calls import ParsedResponse
from seeupo.types import CompletionEnd, Message, Tool, ToolCall

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = Tool("f", "A tool.", SCHEMA)
CALL = ToolCall("f", {"a": 1})
HISTORY = (
    Message("system", "be brief"),
    Message("user", "one\ntwo"),
    Message("assistant", "look", (CALL,)),
    Message("tool", "result"),
)
CHAT = {
    "messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": "look",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "result"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "A tool.", "parameters": SCHEMA}}],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "parallel_tool_calls": False,
    "max_completion_tokens": 9,
    "temperature": 0.5,
    "seed": 3,
    "stop": "end",
    "logprobs": True,
    "stream_options": {"include_usage": True},
}
RESPONSES = {
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "look"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "result"},
    ],
    "tools": [{"type": "function", "name": "f", "description": "A tool.", "parameters": SCHEMA}],
    "max_output_tokens": 9,
    "include": ["message.output_text.logprobs"],
    "temperature": 0.5,
}
MESSAGES = {
    "system": [{"type": "text", "text": "be brief"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "look"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "result"}]},
    ],
    "tools": [{"name": "f", "description": "A tool.", "input_schema": SCHEMA}],
    "max_tokens": 9,
    "temperature": 0.5,
    "stop_sequences": ["end"],
}
APIS = {
    "chat": (chat_completions, CHAT),
    "responses": (responses, RESPONSES),
    "messages": (anthropic_messages, MESSAGES),
}


@pytest.mark.parametrize("name", APIS)
def test_a_request_is_read(name):
    api, body = APIS[name]
    call = api.read(body)
    assert call.messages == HISTORY
    assert call.tools == (TOOL,)
    assert (call.max_tokens, call.temperature) == (9, 0.5)
    assert call.stop == (() if name == "responses" else ("end",))
    assert api.read({**body, "tool_choice": {"type": "none"} if name == "messages" else "none"}).tools == ()


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("chat", {"n": 2}, "n = 2 is not supported: expected 1"),
        ("chat", {"logit_bias": {"5": 1}}, "logit_bias"),
        ("chat", {"presence_penalty": 0.5}, "presence_penalty"),
        ("chat", {"top_logprobs": 3}, "top_logprobs"),
        ("chat", {"temperature": 3}, "temperature = 3: expected a number from 0 to 2"),
        ("chat", {"max_tokens": 0, "max_completion_tokens": None}, "max_tokens = 0"),
        ("chat", {"stop": [""]}, "stop: expected up to 16 texts"),
        ("chat", {"messages": []}, "at least one message of a user"),
        ("chat", {"messages": [{"role": "critic", "content": "x"}]}, "role 'critic'"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "'image_url'"),
        ("chat", {"tools": [{"type": "web_search"}]}, "type 'web_search' is not supported"),
        ("chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "not a JSON schema"),
        ("responses", {"previous_response_id": "r"}, "previous_response_id"),
        ("responses", {"input": [{"type": "computer_call"}]}, "computer_call"),
        ("messages", {"top_k": 5}, "top_k = 5"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "block of type 'image'"),
    ],
)
def test_what_would_change_the_distribution_or_is_unknown_is_refused(name, change, problem):
    api, body = APIS[name]
    with pytest.raises(CallError, match=re.escape(problem)) as refused:
        api.read({**body, **change})
    assert refused.value.status == 400


ODD = (None, True, 5, -1, 1e400, "x", "\ud800", [], [5], [None], ["x"], {}, {"type": 5}, {"a": {"b": 5}}, [{}], [[]])


@pytest.mark.parametrize("name", APIS)
def test_any_json_is_read_or_refused(name):
    api, body = APIS[name]
    statuses = set()
    for number in range(len(places(body))):
        for odd in ODD:
            changed = json.loads(json.dumps(body))
            container, key = places(changed)[number]
            container[key] = odd
            try:
                assert isinstance(api.read(changed), Call)
            except CallError as error:
                statuses.add(error.status)
    assert statuses == {400}


def places(value):
    """Return each container and key of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(value, key), *places(item)]]


@pytest.mark.parametrize("body", [b"", b"[1]", b"\xff", b'{"a":' * 40 + b"1" + b"}" * 40, b"[" * 10**6])
def test_bodies_that_are_no_flat_json_objects_are_refused(body):
    with pytest.raises(CallError, match="the body is"):
        parse_body(body)


@pytest.mark.parametrize("end", CompletionEnd)
@pytest.mark.parametrize("parsed", [ParsedResponse("hi"), ParsedResponse("", "th", (CALL, CALL)), ParsedResponse("")])
@pytest.mark.parametrize("name", APIS)
def test_what_the_policy_wrote_comes_back_as_it_was(name, parsed, end):
    """A client that sends an answer back sends what the transcript of the episode contains."""
    api, _ = APIS[name]
    stop = "end" if end is CompletionEnd.STOP_STRING else None
    answer = Answer(
        id="ab", model="m", created=1, parsed=parsed, end=end, stop=stop, prompt_tokens=3, tokens=(("h", -1.0),)
    )  # fmt: skip
    call = Call(messages=(), logprobs=True, include_usage=True)
    written = json.loads(json.dumps(api.write(answer, call)))
    if name == "chat":
        back = {"messages": [{"role": "user", "content": "x"}, written["choices"][0]["message"]]}
    elif name == "responses":
        back = {"input": [{"role": "user", "content": "x"}, *written["output"]]}
    else:
        entry = {"role": "assistant", "content": written["content"]}
        back = {"messages": [{"role": "user", "content": "x"}, entry]}
    assert api.read(back).messages[1] == Message("assistant", parsed.content, parsed.calls)
    events = "".join(api.stream(answer, call))
    assert events.count("data: ") >= 3
    assert events.endswith("\n\n")
