"""Wire protocol between the trainer and its workers: JSON, one message per line.

Any string survives, including lone surrogates. A model may control what a worker writes, so decoding checks every
field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_args

from seeupo.types import Message, Role, StepResult, Task, Tool, ToolCall

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


def expect_number(value: Any, what: str) -> float:
    """Return a finite int or float as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError(f"{what} is {type(value).__name__}; expected a number")
    try:
        number = float(value)
    except OverflowError:
        raise WireError(f"{what} is too large for a float") from None
    if not math.isfinite(number):
        raise WireError(f"{what} is {number}; expected a finite number")
    return number


def task_to_json(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "split": task.split,
        "kind": task.kind,
        "seed": task.seed,
        "payload": dict(task.payload),
    }


def task_from_json(value: Any) -> Task:
    fields = expect(value, dict, "task")
    return Task(
        id=expect(fields.get("id"), str, "task id"),
        split=expect(fields.get("split"), str, "task split"),
        kind=expect(fields.get("kind"), str, "task kind"),
        seed=expect(fields.get("seed"), int, "task seed"),
        payload=expect(fields.get("payload"), dict, "task payload"),
    )


def result_to_json(result: StepResult) -> dict[str, Any]:
    """Return the result as JSON, without fields at their defaults: most results are one short message."""
    fields: dict[str, Any] = {"messages": [message_to_json(message) for message in result.messages]}
    if result.tools is not None:
        fields["tools"] = [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            for tool in result.tools
        ]
    if result.reward:
        fields["reward"] = result.reward
    if result.terminated:
        fields["terminated"] = True
    if result.truncated:
        fields["truncated"] = True
    if result.info:
        fields["info"] = dict(result.info)
    if result.state_key is not None:
        fields["state_key"] = result.state_key
    return fields


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
    fields = expect(value, dict, "tool call")
    return ToolCall(
        name=expect(fields.get("name"), str, "tool call name"),
        arguments=expect(fields.get("arguments"), dict, "tool call arguments"),
    )


def tool_from_json(value: Any) -> Tool:
    fields = expect(value, dict, "tool")
    return Tool(
        name=expect(fields.get("name"), str, "tool name"),
        description=expect(fields.get("description"), str, "tool description"),
        parameters=expect(fields.get("parameters"), dict, "tool parameters"),
    )
