"""The Responses API of OpenAI, without conversations that the server stores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
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
    text_of,
    tool,
    tool_call,
)
from seeupo.types import CompletionEnd, Tool

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "prompt": (),
    "top_logprobs": (0,),
}
"""Parameters that are refused, and the values with which they change nothing."""
_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def read(body: Mapping[str, Any]) -> Call:
    """Return the call of a request."""
    refuse(body, NEUTRAL)
    conversation = Conversation()
    if instructions := text_of(body.get("instructions"), "instructions"):
        conversation.add("system", instructions)
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for item in objects(items, "input", MAX_MESSAGES):
        _add(conversation, item)
    return Call(
        messages=conversation.checked(),
        tools=() if body.get("tool_choice") == "none" else _tools(body),
        max_tokens=count(body, "max_output_tokens"),
        temperature=number(body, "temperature", 0, 2),
        top_p=number(body, "top_p", 0, 1),
        logprobs=isinstance(include := body.get("include"), list) and "message.output_text.logprobs" in include,
        stream=body.get("stream") is True,
    )


def _add(conversation: Conversation, item: Mapping[str, Any]) -> None:
    kind = item.get("type", "message")
    role = item.get("role")
    if kind == "function_call":
        conversation.extend_assistant(calls=[tool_call(item.get("name"), item.get("arguments"))])
    elif kind == "function_call_output":
        conversation.add("tool", text_of(item.get("output"), "input"))
    elif kind == "message" and role == "assistant":
        conversation.extend_assistant(text_of(item.get("content"), "input"))
    elif kind == "message" and role in ("system", "developer"):
        conversation.add("system", text_of(item.get("content"), "input"))
    elif kind == "message" and role == "user":
        conversation.add("user", text_of(item.get("content"), "input"))
    elif kind != "reasoning":  # thoughts are not part of later prompts
        raise CallError(400, f"input: item of type {str(kind)[:40]!r} and role {str(role)[:40]!r} is not supported")


def _tools(body: Mapping[str, Any]) -> tuple[Tool, ...]:
    tools = []
    for entry in objects(body.get("tools"), "tools", MAX_TOOLS):
        if entry.get("type") != "function":
            raise CallError(400, f"tools: type {str(entry.get('type'))[:40]!r} is not supported: expected function")
        tools.append(tool(entry.get("name"), entry.get("description"), entry.get("parameters")))
    return tuple(tools)


def write(answer: Answer, call: Call) -> dict[str, Any]:
    """Return the body of a response."""
    cut = answer.end is CompletionEnd.LENGTH
    sampled = len(answer.tokens)
    return Response.model_validate(
        {
            "id": f"resp_{answer.id}",
            "object": "response",
            "created_at": answer.created,
            "model": answer.model,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _output(answer, call),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": answer.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": sampled,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": answer.prompt_tokens + sampled,
            },
        }
    ).model_dump(mode="json")


def _output(answer: Answer, call: Call) -> list[dict[str, Any]]:
    """Return the items of a response: thoughts, then text, then calls."""
    parsed = answer.parsed
    items: list[dict[str, Any]] = []
    if parsed.thoughts:
        content = [{"type": "reasoning_text", "text": parsed.thoughts}]
        items.append({"id": f"rs_{answer.id}", "type": "reasoning", "summary": [], "content": content})
    if parsed.content or not parsed.calls:
        logprobs = [
            {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace")), "top_logprobs": []}
            for text, logprob in (answer.tokens if call.logprobs else ())
        ]
        part = {"type": "output_text", "text": parsed.content, "annotations": [], "logprobs": logprobs}
        message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        items.append({"id": f"msg_{answer.id}", **message})
    for index, called in enumerate(parsed.calls):
        items.append(
            {
                "id": f"fc_{answer.id}_{index}",
                "type": "function_call",
                "status": "completed",
                "call_id": f"call_{answer.id}_{index}",
                "name": called.name,
                "arguments": json.dumps(called.arguments, ensure_ascii=False),
            }
        )
    return items


def stream(answer: Answer, call: Call) -> Iterator[str]:
    """Yield the server-sent events of a response: each text and call is one delta."""
    response = write(answer, call)
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(response["output"]):
        events += _item_events(index, item)
    events.append({"type": f"response.{response['status']}", "response": response})
    for number_, event in enumerate(events):
        checked = _EVENTS.validate_python({**event, "sequence_number": number_})
        yield f"event: {checked.type}\ndata: {checked.model_dump_json()}\n\n"


def _item_events(index: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    where = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        yield {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**item, "status": "in_progress", "arguments": ""},
        }
        yield {"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]}
        yield {
            "type": "response.function_call_arguments.done",
            **where,
            "name": item["name"],
            "arguments": item["arguments"],
        }
    elif item["type"] == "message":
        (part,) = item["content"]
        begun = {**part, "text": "", "logprobs": []}
        text = {**where, "content_index": 0}
        yield {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**item, "status": "in_progress", "content": []},
        }
        yield {"type": "response.content_part.added", **text, "part": begun}
        yield {"type": "response.output_text.delta", **text, "delta": part["text"], "logprobs": part["logprobs"]}
        yield {"type": "response.output_text.done", **text, "text": part["text"], "logprobs": part["logprobs"]}
        yield {"type": "response.content_part.done", **text, "part": part}
    else:
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}
