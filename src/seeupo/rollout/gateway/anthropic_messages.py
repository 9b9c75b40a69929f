"""The Messages API of Anthropic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from seeupo.rollout.gateway.calls import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Answer,
    Call,
    CallError,
    Conversation,
    count,
    number,
    objects,
    refuse,
    stop_texts,
    text_of,
    tool,
    tool_call,
)
from seeupo.types import CompletionEnd, Tool

NEUTRAL: Mapping[str, tuple[object, ...]] = {"top_k": (0,), "mcp_servers": ([],), "container": ()}
"""Parameters that are refused, and the values with which they change nothing."""
_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def read(body: Mapping[str, Any]) -> Call:
    """Return the call of a request."""
    refuse(body, NEUTRAL)
    conversation = Conversation()
    if system := text_of(body.get("system"), "system"):
        conversation.add("system", system)
    for entry in objects(body.get("messages"), "messages", MAX_MESSAGES):
        _add(conversation, entry)
    choice = body.get("tool_choice")
    return Call(
        messages=conversation.checked(),
        tools=() if isinstance(choice, dict) and choice.get("type") == "none" else _tools(body),
        max_tokens=count(body, "max_tokens"),
        temperature=number(body, "temperature", 0, 2),
        top_p=number(body, "top_p", 0, 1),
        stop=stop_texts(body.get("stop_sequences"), "stop_sequences"),
        stream=body.get("stream") is True,
    )


def _add(conversation: Conversation, entry: Mapping[str, Any]) -> None:
    role, content = entry.get("role"), entry.get("content")
    if role not in ("user", "assistant", "system"):
        raise CallError(400, f"role {str(role)[:40]!r}: expected user or assistant")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts: list[str] = []
    calls = []
    for block in objects(blocks, "content", MAX_MESSAGES):
        match block.get("type"):
            case "text":
                texts.append(text_of([block], "content"))
            case "tool_use" if role == "assistant":
                calls.append(tool_call(block.get("name"), block.get("input")))
            case "tool_result" if role == "user":
                conversation.add("tool", text_of(block.get("content"), "content"))
            case "thinking" | "redacted_thinking":
                pass  # thoughts are not part of later prompts
            case kind:
                raise CallError(400, f"content: block of type {str(kind)[:40]!r} is not supported")
    if role == "assistant":
        conversation.add("assistant", "\n".join(texts), calls)
    elif texts:
        conversation.add("system" if role == "system" else "user", "\n".join(texts))


def _tools(body: Mapping[str, Any]) -> tuple[Tool, ...]:
    tools = []
    for entry in objects(body.get("tools"), "tools", MAX_TOOLS):
        if entry.get("type", "custom") not in ("custom", None):
            raise CallError(400, f"tools: type {str(entry['type'])[:40]!r} is not supported: expected custom")
        tools.append(tool(entry.get("name"), entry.get("description"), entry.get("input_schema")))
    return tuple(tools)


def write(answer: Answer, call: Call) -> dict[str, Any]:
    """Return the body of a response."""
    del call
    return Message.model_validate(
        {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": list(_blocks(answer)),
            "stop_reason": _stop_reason(answer),
            "stop_sequence": answer.stop,
            "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": len(answer.tokens)},
        }
    ).model_dump(mode="json", exclude_unset=True)


def _blocks(answer: Answer) -> Iterator[dict[str, Any]]:
    parsed = answer.parsed
    if parsed.content or not parsed.calls:
        yield {"type": "text", "text": parsed.content, "citations": None}
    for index, called in enumerate(parsed.calls):
        yield {
            "type": "tool_use",
            "id": f"toolu_{answer.id}_{index}",
            "name": called.name,
            "input": dict(called.arguments),
        }


def _stop_reason(answer: Answer) -> str:
    if answer.end is CompletionEnd.LENGTH:
        return "max_tokens"
    if answer.stop is not None:
        return "stop_sequence"
    return "tool_use" if answer.parsed.calls else "end_turn"


def stream(answer: Answer, call: Call) -> Iterator[str]:
    """Yield the server-sent events of a response: each text and call is one delta."""
    message = write(answer, call)
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
        events += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    events += [
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": usage["output_tokens"]}},
        {"type": "message_stop"},
    ]
    for event in events:
        checked = _EVENTS.validate_python(event)
        yield f"event: {checked.type}\ndata: {checked.model_dump_json(exclude_unset=True)}\n\n"
