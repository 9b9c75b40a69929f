"""How tasks and results travel between a trainer and its workers: as JSON, one message a line.

Any string survives, lone surrogates included. The trainer reads what a worker may have been made to write by a model,
so decoding checks every field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_args

from seeupo.types import Message, Role, StepResult, Task, Tool, ToolCall

T = TypeVar("T")
ROLES = get_args(Role)


class WireError(Exception):
    """Something cannot be sent, or is not what was expected."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One line of JSON."""
    try:
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
    except (TypeError, ValueError) as error:
        raise WireError(f"not JSON: {error}") from None


def decode(line: bytes | bytearray) -> dict[str, Any]:
    """The message of a line."""
    try:
        message = json.loads(line.decode(errors="surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a line of JSON ({error}): {bytes(line[:80])!r}") from None
    return expect(message, dict, "a message")


def expect(value: Any, kind: type[T], what: str) -> T:
    """The value, if it has the expected type; a bool is no expect_number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise WireError(f"{what} should be {kind.__name__} and is {type(value).__name__}")
    return value


def expect_number(value: Any, what: str) -> float:
    """A float, also from an int."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError(f"{what} should be a expect_number and is {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise WireError(f"{what} is too large for a float") from None


def task_to_json(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "split": task.split,
        "kind": task.kind,
        "seed": task.seed,
        "payload": dict(task.payload),
    }


def task_from_json(value: Any) -> Task:
    fields = expect(value, dict, "a task")
    return Task(
        id=expect(fields.get("id"), str, "a task's id"),
        split=expect(fields.get("split"), str, "a task's split"),
        kind=expect(fields.get("kind"), str, "a task's kind"),
        seed=expect(fields.get("seed"), int, "a task's seed"),
        payload=expect(fields.get("payload"), dict, "a task's payload"),
    )


def result_to_json(result: StepResult) -> dict[str, Any]:
    """Fields at their defaults are left out: most results are one short message."""
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
    return fields


def result_from_json(value: Any) -> StepResult:
    fields = expect(value, dict, "a result")
    tools = fields.get("tools")
    return StepResult(
        messages=tuple(message_from_json(message) for message in expect(fields.get("messages"), list, "messages")),
        tools=None if tools is None else tuple(tool_from_json(tool) for tool in expect(tools, list, "tools")),
        reward=expect_number(fields.get("reward", 0.0), "a reward"),
        terminated=expect(fields.get("terminated", False), bool, "terminated"),
        truncated=expect(fields.get("truncated", False), bool, "truncated"),
        info=expect(fields.get("info", {}), dict, "info"),
    )


def message_to_json(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    return fields


def message_from_json(value: Any) -> Message:
    fields = expect(value, dict, "a message")
    role = fields.get("role")
    if role not in ROLES:
        raise WireError(f"a message's role should be one of {', '.join(ROLES)} and is {str(role)[:40]!r}")
    return Message(
        role=cast("Role", role),
        content=expect(fields.get("content"), str, "a message's content"),
        tool_calls=tuple(call_from_json(call) for call in expect(fields.get("tool_calls", []), list, "tool calls")),
    )


def call_from_json(value: Any) -> ToolCall:
    fields = expect(value, dict, "a tool call")
    return ToolCall(
        name=expect(fields.get("name"), str, "a tool call's name"),
        arguments=expect(fields.get("arguments"), dict, "a tool call's arguments"),
    )


def tool_from_json(value: Any) -> Tool:
    fields = expect(value, dict, "a tool")
    return Tool(
        name=expect(fields.get("name"), str, "a tool's name"),
        description=expect(fields.get("description"), str, "a tool's description"),
        parameters=expect(fields.get("parameters"), dict, "a tool's parameters"),
    )
