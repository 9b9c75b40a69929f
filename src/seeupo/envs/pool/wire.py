"""Wire protocol between the trainer and its workers: JSON, one message per line.

Any string survives, including lone surrogates. A model may control what a worker writes, so decoding checks every
field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_args

from seeupo.types import Message, Role, StepResult, Task, Tool, ToolCall
from seeupo.utils.numbers import finite_number

T = TypeVar("T")
ROLES = get_args(Role)
MAX_DEPTH = 100
"""Limit on nesting, far below Python's: code that uses a message recurses over it from a deeper stack."""


class WireError(Exception):
    """A message cannot be encoded, or a received one is malformed."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the message as one line of JSON."""
    try:
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None


def decode(line: bytes | bytearray) -> dict[str, Any]:
    """Return the message in a line of JSON."""
    try:
        message = json.loads(line.decode(errors="surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a line of JSON ({error}): {bytes(line[:80])!r}") from None
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_deeper(message, MAX_DEPTH):
        raise WireError(f"a message is nested more than {MAX_DEPTH} deep")
    return expect(message, dict, "message")


def _is_deeper(value: object, depth: int) -> bool:
    """Return whether lists and objects are nested more than `depth` deep."""
    if not isinstance(value, dict | list):
        return False
    return depth == 0 or any(
        _is_deeper(part, depth - 1) for part in (value.values() if isinstance(value, dict) else value)
    )


def expect(value: Any, kind: type[T], what: str) -> T:
    """Return the value if it has the expected type; a bool is not an int."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise WireError(f"{what} is {type(value).__name__}; expected {kind.__name__}")
    return value


def expect_fields(value: Any, what: str, **kinds: type) -> dict[str, Any]:
    """Return these fields of an object if each has the expected type."""
    fields = expect(value, dict, what)
    return {name: expect(fields.get(name), kind, f"{what} {name}") for name, kind in kinds.items()}


def expect_number(value: Any, what: str) -> float:
    """Return a finite int or float as a float."""
    number = finite_number(value)
    if number is None:
        raise WireError(f"{what} is {type(value).__name__}; expected a finite number")
    return float(number)


def task_to_json(task: Task) -> dict[str, Any]:
    payload = dict(task.payload)
    return {"id": task.id, "split": task.split, "kind": task.kind, "seed": task.seed, "payload": payload}


def task_from_json(value: Any) -> Task:
    return Task(**expect_fields(value, "task", id=str, split=str, kind=str, seed=int, payload=dict))


def result_to_json(result: StepResult) -> dict[str, Any]:
    """Return the result as JSON, without fields at their defaults: most results are one short message."""
    fields: dict[str, Any] = {"messages": [message_to_json(message) for message in result.messages]}
    if result.tools is not None:
        fields["tools"] = [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            for tool in result.tools
        ]
    others = {
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "info": dict(result.info),
    }
    fields |= {name: value for name, value in others.items() if value}
    return fields if result.state_key is None else fields | {"state_key": result.state_key}


def result_from_json(value: Any) -> StepResult:
    fields = expect(value, dict, "result")
    tools, state_key = fields.get("tools"), fields.get("state_key")
    return StepResult(
        messages=tuple(message_from_json(message) for message in expect(fields.get("messages"), list, "messages")),
        tools=None if tools is None else tuple(tool_from_json(tool) for tool in expect(tools, list, "tools")),
        reward=expect_number(fields.get("reward", 0.0), "reward"),
        terminated=expect(fields.get("terminated", False), bool, "terminated"),
        truncated=expect(fields.get("truncated", False), bool, "truncated"),
        info=expect(fields.get("info", {}), dict, "info"),
        state_key=None if state_key is None else expect(state_key, str, "state key"),
    )


def message_to_json(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    return fields


def message_from_json(value: Any) -> Message:
    fields = expect(value, dict, "message")
    role = fields.get("role")
    if role not in ROLES:
        raise WireError(f"message role is {str(role)[:40]!r}; expected one of {', '.join(ROLES)}")
    return Message(
        role=cast("Role", role),
        content=expect(fields.get("content"), str, "message content"),
        tool_calls=tuple(call_from_json(call) for call in expect(fields.get("tool_calls", []), list, "tool calls")),
    )


def call_from_json(value: Any) -> ToolCall:
    return ToolCall(**expect_fields(value, "tool call", name=str, arguments=dict))


def tool_from_json(value: Any) -> Tool:
    return Tool(**expect_fields(value, "tool", name=str, description=str, parameters=dict))
