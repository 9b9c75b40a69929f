"""Parse a sampled response into thoughts, content and tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seeupo.rollout.chat import ChatFormat
from seeupo.rollout.reasoning import CLOSE, OPEN
from seeupo.types import Message, Tool, ToolCall

TAGS: Mapping[str, Any] = {
    "start_anchor_pattern": r"\A",
    "fields": {
        "thinking": {"open": OPEN, "close": CLOSE},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"function": "{content}"},
        },
        "content": {"content_args": {"strip": False}, "repeats": True, "join": ""},
    },
}
"""Response template of Qwen and Hermes, and of models whose tokenizer has none: thoughts and calls in tags."""
PYTHON_TAG = "<|python_tag|>"
"""Written by Llama 3 before a call."""
JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A response as a client of an API sees it."""

    content: str
    thoughts: str = ""
    calls: tuple[ToolCall, ...] = ()


def parse_response(chat: ChatFormat, text: str, tools: Sequence[Tool]) -> ParsedResponse:
    """Return the parts of a response. Calls are read only if there are tools; a malformed call makes all of it content.

    A call is read as the tokenizer's own response template says, otherwise from `<tool_call>` tags, or from a response
    that is one JSON object with a name and arguments (or parameters, as in Llama 3).

    Args:
        text: The sampled text with its special tokens, without the end of the turn.
        tools: Tools of the request; arguments must have the types of their parameters.
    """
    own = getattr(chat.tokenizer, "response_template", None)
    prompt = chat.text_between([Message("user", "")])
    opened = OPEN if prompt.rfind(OPEN) > prompt.rfind(CLOSE) else ""  # some templates begin the thought
    template, prefix = (own, prompt) if isinstance(own, Mapping) else (TAGS, opened)
    fields = {name: field for name, field in template["fields"].items() if tools or name != "tool_calls"}
    schemas: list[Any] = [tool.schema for tool in tools]
    try:
        parsed = chat.tokenizer.parse_response(text, {**template, "fields": fields}, prefix=prefix, tools=schemas)
        content = str(parsed.get("content") or "").strip()
        thoughts = str(parsed.get("thinking") or "")
        entries = [call["function"] for call in parsed.get("tool_calls") or ()]
        if tools and not entries and (only := _only_json(content)) is not None:
            entries = [only]
            content = ""
        return ParsedResponse(content, thoughts, tuple(_checked_call(entry, tools) for entry in entries))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ParsedResponse(text)


def _only_json(content: str) -> Any:
    """Return the object that the content consists of if it has the form of a call."""
    text = content.removeprefix(PYTHON_TAG)
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if "name" in value and ("arguments" in value or "parameters" in value) else None


def _checked_call(function: Mapping[str, Any], tools: Sequence[Tool]) -> ToolCall:
    """Return a call of a tool with arguments of the types of its parameters; raise ValueError otherwise."""
    name = function["name"]
    arguments = function["arguments"] if "arguments" in function else function["parameters"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not (isinstance(name, str) and isinstance(arguments, dict)):
        raise ValueError("expected a name and an object of arguments")
    parameters = next((tool.parameters for tool in tools if tool.name == name), {})
    for key, value in arguments.items():
        expected = parameters.get("properties", {}).get(key, {}).get("type")
        if isinstance(expected, str) and expected in JSON_TYPES and not _has_type(value, expected):
            raise ValueError(f"argument {key!r} is not of type {expected}")
    json.dumps(arguments, allow_nan=False)  # NaN is no JSON
    return ToolCall(name, arguments)


def _has_type(value: object, expected: str) -> bool:
    return isinstance(value, JSON_TYPES[expected]) and (expected == "boolean" or not isinstance(value, bool))
