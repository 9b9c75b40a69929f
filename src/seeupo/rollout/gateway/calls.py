"""Calls of a model, and the answers to them, apart from any API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from seeupo.rollout.gateway.tool_calls import ParsedResponse
from seeupo.types import CompletionEnd, Message, Role, Tool, ToolCall

MAX_DEPTH = 32
"""Maximum nesting of a request's JSON."""
MAX_MESSAGES = 2000
MAX_TOOLS = 256


class CallError(Exception):
    """A request that is refused.

    Attributes:
        status: HTTP status.
        message: What is wrong, for the program's author.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request for one response.

    Attributes:
        messages: The whole conversation so far.
        tools: Tools that the response may call.
        max_tokens: Maximum length of the response; None for the server's limit.
        temperature, top_p: Sampling parameters that the program asked for; None if it asked for none.
        seed: Random seed that the program asked for, or None.
        stop: Texts that end the response; they are not part of its content.
        logprobs: Whether the answer has the log-prob of each token.
        stream: Whether the answer is a stream of events; with `include_usage`, of which one has the token counts.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    stream: bool = False
    include_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sends a request.

    Attributes:
        key: The key that the request has; empty if it has none.
        agent_role: Role of the agent program that calls, from the address; empty for the only one.
        retry: Whether the client says that it repeats a request.
        digest: Hash of the request, to recognize its repetition.
    """

    key: str
    agent_role: str = ""
    retry: bool = False
    digest: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response to a call.

    Attributes:
        id: Name of the answer; the ids of its tool calls contain it.
        model: Name of the model.
        created: Time in seconds since 1970.
        parsed: Content, thoughts and tool calls of the response.
        end: Reason that the response ended.
        stop: The stop text that ended it, or None.
        prompt_tokens: Length of the prompt.
        tokens: Text and log-prob of each sampled token; without text if the call asked for no log-probs.
    """

    id: str
    model: str
    created: int
    parsed: ParsedResponse
    end: CompletionEnd
    stop: str | None
    prompt_tokens: int
    tokens: tuple[tuple[str, float], ...]


def parse_body(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a request."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise CallError(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise CallError(400, "the body is not a JSON object")
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [item for container in level for item in _items(container)]
    if level:
        raise CallError(400, f"the body is nested more than {MAX_DEPTH} levels deep")
    return value


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def refuse(body: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse parameters that would change the distribution of the responses, unless they have a neutral value."""
    for name, values in neutral.items():
        if body.get(name) not in (None, *values):
            expected = f"expected {' or '.join(map(json.dumps, values))}, or leave it out" if values else "leave it out"
            raise CallError(400, f"{name} = {json.dumps(body[name])[:100]} is not supported: {expected}")


def number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """Return a number of the body in a range; None if it is not there."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise CallError(400, f"{name} = {json.dumps(value)[:100]}: expected a number from {low:g} to {high:g}")
    return float(value)


def count(body: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of some positive integers of the body that is there."""
    for name in names:
        if (value := number(body, name, 1, 2**31)) is not None:
            if value != int(value):
                raise CallError(400, f"{name} = {value}: expected an integer")
            return int(value)
    return None


def objects(value: object, name: str, limit: int) -> list[Mapping[str, Any]]:
    """Return a list of JSON objects; None is empty."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise CallError(400, f"{name}: expected a list of objects")
    if len(value) > limit:
        raise CallError(400, f"{name}: {len(value)} entries; expected at most {limit}")
    return value


def text_of(content: object, name: str) -> str:
    """Return the text of a message's content: a string, or a list of text parts; None is empty."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in objects(content, name, MAX_MESSAGES):
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise CallError(400, f"{name}: part of type {str(part.get('type'))[:40]!r} is not supported: expected text")
        parts.append(text)
    return "\n".join(parts)


def tool(name: object, description: object, parameters: object) -> Tool:
    """Return a tool that a request offers."""
    if not isinstance(name, str) or not name:
        raise CallError(400, "tools: a tool has no name")
    if parameters is not None and not isinstance(parameters, dict):
        raise CallError(400, f"tools: the parameters of {name[:80]!r} are not a JSON schema")
    return Tool(name, description if isinstance(description, str) else "", parameters or {})


def tool_call(name: object, arguments: object) -> ToolCall:
    """Return a call in the history of a request; its arguments are an object or its JSON."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise CallError(400, f"tool call {name!r}: the arguments are not JSON") from None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise CallError(400, "a tool call needs a name and an object of arguments")
    return ToolCall(name, arguments)


def stop_texts(value: object, name: str) -> tuple[str, ...]:
    """Return the stop texts of a request: a string or a list of up to 16."""
    texts = [value] if isinstance(value, str) else value or []
    if (
        not isinstance(texts, list)
        or len(texts) > 16
        or not all(isinstance(t, str) and 0 < len(t) <= 256 for t in texts)
    ):
        raise CallError(400, f"{name}: expected up to 16 texts of 1 to 256 characters")
    return tuple(texts)


class Conversation:
    """Collects the messages of a request; what an assistant says in several items is one message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def add(self, role: Role, content: str, calls: Iterable[ToolCall] = ()) -> None:
        """Add a message."""
        self.messages.append(Message(role, content, tuple(calls)))

    def extend_assistant(self, content: str = "", calls: Iterable[ToolCall] = ()) -> None:
        """Add an item of an assistant to its last message, or a new message if another role was last."""
        last = Message("assistant", "")
        if self.messages and self.messages[-1].role == "assistant":
            last = self.messages.pop()
        text = "\n".join(filter(None, (last.content, content)))
        self.add("assistant", text, (*last.tool_calls, *calls))

    def checked(self) -> tuple[Message, ...]:
        """Return the messages; there must be one that is not the system's."""
        if all(message.role == "system" for message in self.messages):
            raise CallError(400, "messages: expected at least one message of a user")
        return tuple(self.messages)
