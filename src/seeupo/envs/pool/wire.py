"""Wire protocol between the trainer and its workers: JSON, one message per line.

Any string survives, including lone surrogates. A model may control what a worker writes, so decoding checks every
field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

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
    return {
        "messages": [message_to_json(message) for message in result.messages],
        "tools": None if result.tools is None else [tool_to_json(tool) for tool in result.tools],
        "reward": float(result.reward),
        "terminated": result.terminated,
        "truncated": result.truncated,
        "info": dict(result.info),
        "state_key": result.state_key,
    }


def result_from_json(value: Any) -> StepResult:
    fields = expect_fields(value, "result", messages=list, terminated=bool, truncated=bool, info=dict)
    tools, state_key = value.get("tools"), value.get("state_key")
    fields["messages"] = tuple(map(message_from_json, fields["messages"]))
    return StepResult(
        **fields,
        tools=None if tools is None else tuple(map(tool_from_json, expect(tools, list, "tools"))),
        reward=expect_number(value.get("reward"), "reward"),
        state_key=None if state_key is None else expect(state_key, str, "state key"),
    )


def message_to_json(message: Message) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    return {"role": message.role, "content": message.content, "tool_calls": calls}


def message_from_json(value: Any) -> Message:
    fields = expect_fields(value, "message", role=str, content=str, tool_calls=list)
    if fields["role"] not in ROLES:
        raise WireError(f"message role is {fields['role'][:40]!r}; expected one of {', '.join(ROLES)}")
    fields["tool_calls"] = tuple(map(call_from_json, fields["tool_calls"]))
    return Message(**fields)


def call_from_json(value: Any) -> ToolCall:
    return ToolCall(**expect_fields(value, "tool call", name=str, arguments=dict))


def tool_to_json(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def tool_from_json(value: Any) -> Tool:
    return Tool(**expect_fields(value, "tool", name=str, description=str, parameters=dict))
