import pytest

from rollout.tokenizers_like import tokenizer_like
from seeupo.rollout.chat import chat_format
from seeupo.rollout.gateway.tool_calls import ParsedResponse, parse_response
from seeupo.types import Tool, ToolCall

PROPERTIES = {"n": {"type": "integer"}, "s": {"type": "string"}, "any": {}}
TOOL = Tool("f", "A tool.", {"type": "object", "properties": PROPERTIES})
ONE = '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>'
CALL = ToolCall("f", {"n": 1})


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("hello", ParsedResponse("hello")),
        ("<think>why</think>\nyes", ParsedResponse("yes", "why")),
        (ONE, ParsedResponse("", "", (CALL,))),
        (f"<think>a</think>first\n{ONE}\n{ONE}", ParsedResponse("first", "a", (CALL, CALL))),
        ('{"name": "f", "arguments": {"n": 1}}', ParsedResponse("", "", (CALL,))),
        ('<|python_tag|>{"name": "f", "parameters": {"n": 1}}', ParsedResponse("", "", (CALL,))),
        ('<tool_call>{"name": "f", "arguments": "{\\"n\\": 1}"}</tool_call>', ParsedResponse("", "", (CALL,))),
        ('<tool_call>{"name": "f", "arguments": {"n": "1"}}</tool_call>', ParsedResponse("", "", (CALL,))),
        ('<tool_call>{"name": "new", "arguments": {}}</tool_call>', ParsedResponse("", "", (ToolCall("new", {}),))),
    ],
)
def test_responses_are_parsed(text, parsed):
    for name in ("llama", "qwen2.5", "qwen3"):
        assert parse_response(chat_format(tokenizer_like(name)), text, [TOOL]) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{bad</tool_call>",
        "<tool_call>5</tool_call>",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"n": "many"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"n": true}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"any": NaN}}</tool_call>',
        "<tool_call>" + "[" * 5000 + "</tool_call>",
        f"{ONE}<tool_call>{{bad</tool_call>",
        '{"name": "f"}',
        "{" * 5000,
    ],
)
def test_malformed_calls_are_content(text):
    assert parse_response(chat_format(tokenizer_like("qwen3")), text, [TOOL]) == ParsedResponse(text)


def test_nothing_is_a_call_without_tools():
    chat = chat_format(tokenizer_like("qwen3"))
    assert parse_response(chat, f"<think>a</think>{ONE}", []) == ParsedResponse(ONE, "a")


def test_thoughts_that_the_prompt_begins_are_thoughts():
    tokenizer = tokenizer_like("qwen2.5")
    begun = "{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ '<|im_start|>assistant\n' }}{% endif %}", begun)
    assert parse_response(chat_format(tokenizer), "hm</think>yes", []) == ParsedResponse("yes", "hm")


def test_a_response_template_of_the_tokenizer_is_used():
    tokenizer = tokenizer_like("qwen2.5")
    call = {"open": "CALL", "content": "json", "transform": [{"function": "{content}"}]}
    tokenizer.response_template = {"start_anchor": "assistant\n", "fields": {"tool_calls": call, "content": {}}}
    parsed = parse_response(chat_format(tokenizer), 'yes CALL{"name": "f", "arguments": {"n": 1}}', [TOOL])
    assert parsed == ParsedResponse("yes", "", (CALL,))
