"""The chat completions API of OpenAI."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

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

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "top_logprobs": (0,),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "functions": ([],),
}
"""Parameters that are refused, and the values with which they change nothing."""


def read(body: Mapping[str, Any]) -> Call:
    """Return the call of a request."""
    refuse(body, NEUTRAL)
    conversation = Conversation()
    for entry in objects(body.get("messages"), "messages", MAX_MESSAGES):
        role = entry.get("role")
        content = text_of(entry.get("content"), "messages")
        if role in ("system", "developer"):
            conversation.add("system", content)
        elif role == "user":
            conversation.add("user", content)
        elif role == "assistant":
            entries = objects(entry.get("tool_calls"), "tool_calls", MAX_TOOLS)
            functions = objects([call.get("function") for call in entries], "tool_calls", MAX_TOOLS)
            calls = [tool_call(function.get("name"), function.get("arguments")) for function in functions]
            conversation.add("assistant", content, calls)
        elif role == "tool":
            conversation.add("tool", content)
        else:
            raise CallError(400, f"role {str(role)[:40]!r}: expected system, developer, user, assistant or tool")
    return Call(
        messages=conversation.checked(),
        tools=() if body.get("tool_choice") == "none" else _tools(body),
        max_tokens=count(body, "max_completion_tokens", "max_tokens"),
        temperature=number(body, "temperature", 0, 2),
        top_p=number(body, "top_p", 0, 1),
        seed=None if (seed := number(body, "seed", -(2**63), 2**63)) is None else int(seed),
        stop=stop_texts(body.get("stop"), "stop"),
        logprobs=body.get("logprobs") is True,
        stream=body.get("stream") is True,
        include_usage=isinstance(options := body.get("stream_options"), dict) and options.get("include_usage") is True,
    )


def _tools(body: Mapping[str, Any]) -> tuple[Tool, ...]:
    tools = []
    for entry in objects(body.get("tools"), "tools", MAX_TOOLS):
        function = entry.get("function")
        if entry.get("type") != "function" or not isinstance(function, dict):
            raise CallError(400, f"tools: type {str(entry.get('type'))[:40]!r} is not supported: expected function")
        tools.append(tool(function.get("name"), function.get("description"), function.get("parameters")))
    return tuple(tools)


def write(answer: Answer, call: Call) -> dict[str, Any]:
    """Return the body of a response."""
    parsed = answer.parsed
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content or None}
    if parsed.thoughts:
        message["reasoning_content"] = parsed.thoughts
    if parsed.calls:
        message["tool_calls"] = tool_calls(answer)
    elif message["content"] is None:
        message["content"] = ""
    completion = ChatCompletion.model_validate(
        {
            **_head(answer, "chat.completion"),
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": finish_reason(answer),
                    "logprobs": logprobs(answer) if call.logprobs else None,
                }
            ],
            "usage": usage(answer),
        }
    )
    return completion.model_dump(mode="json", exclude_unset=True)


def stream(answer: Answer, call: Call) -> Iterator[str]:
    """Yield the server-sent events of a response: its first chunk has all of it."""
    parsed = answer.parsed
    delta: dict[str, Any] = {"role": "assistant", "content": parsed.content or ("" if not parsed.calls else None)}
    if parsed.thoughts:
        delta["reasoning_content"] = parsed.thoughts
    if parsed.calls:
        delta["tool_calls"] = [{"index": index, **entry} for index, entry in enumerate(tool_calls(answer))]
    first = {"index": 0, "delta": delta, "logprobs": logprobs(answer) if call.logprobs else None}
    choices: list[list[dict[str, Any]]] = [[first], [{"index": 0, "delta": {}, "finish_reason": finish_reason(answer)}]]
    for chunk in choices:
        yield _event({**_head(answer, "chat.completion.chunk"), "choices": chunk})
    if call.include_usage:
        yield _event({**_head(answer, "chat.completion.chunk"), "choices": [], "usage": usage(answer)})
    yield "data: [DONE]\n\n"


def _event(chunk: Mapping[str, Any]) -> str:
    checked = ChatCompletionChunk.model_validate(chunk)
    return f"data: {checked.model_dump_json(exclude_unset=True)}\n\n"


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": answer.model}


def tool_calls(answer: Answer) -> list[dict[str, Any]]:
    """Return the calls of a response."""
    return [
        {
            "id": f"call_{answer.id}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for index, call in enumerate(answer.parsed.calls)
    ]


def finish_reason(answer: Answer) -> str:
    """Return why a response ended."""
    if answer.end is CompletionEnd.LENGTH:
        return "length"
    return "tool_calls" if answer.parsed.calls else "stop"


def usage(answer: Answer) -> dict[str, int]:
    """Return the numbers of tokens."""
    sampled = len(answer.tokens)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": answer.prompt_tokens + sampled,
    }


def logprobs(answer: Answer) -> dict[str, Any]:
    """Return the log-probs of the sampled tokens."""
    content = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace")), "top_logprobs": []}
        for text, logprob in answer.tokens
    ]
    return {"content": content, "refusal": None}
