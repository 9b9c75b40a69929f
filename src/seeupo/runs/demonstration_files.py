"""Demonstration files: JSON lines of chat messages or of prompt/completion pairs, gzipped or not.

    {"messages": [{"role", "content", "tool_calls"}], "tools": [...]}
    {"prompt": text or messages, "completion": text or messages, "tools": [...]}

Tool calls and tools have the form of the OpenAI API. All assistant messages of "messages" are demonstrations, and those
of "completion", but not those of "prompt". A trajectory file is recognized by its first line, and read by
`seeupo.runs.trajectory_files`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, cast

from seeupo.errors import DemonstrationFileError
from seeupo.runs.trajectory_files import FORMAT as TRAJECTORIES
from seeupo.types import Message, Role, Tool, ToolCall
from seeupo.utils.json_lines import UnreadableLines, parse_object, read_lines

DataFormat = Literal["chat messages", "prompt/completion pairs", "trajectories"]
EXPECTED = 'expected {"messages": [...]}, {"prompt": ..., "completion": ...}, or a trajectory file of a run'
MAX_LINE_BYTES = 4_000_000
"""Bytes of one conversation, about a million tokens; tokenizing it takes 300 times its size in memory."""
ROLES = ("system", "user", "assistant", "tool")
MESSAGE = '{"role": "user", "content": "..."}'
CALL = '{"type": "function", "function": {"name": "...", "arguments": {...}}}'


@dataclass(frozen=True, slots=True)
class ChatDemonstration:
    """A conversation to learn from.

    Attributes:
        line: Line of the file, from 1.
        messages: The conversation; it starts with a message that is not the assistant's.
        tools: Tools that the conversation offers.
        trained: Positions of the assistant messages that are trained on.
    """

    line: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    trained: frozenset[int]


def data_format(path: Path) -> DataFormat:
    """Return the format of a file, by its first line."""
    number, fields = next(_rows(path))
    try:
        return _format_of(fields)
    except ValueError as error:
        raise DemonstrationFileError(f"{path}, line {number}: {error}") from None


def read_chat_file(path: Path) -> Iterator[ChatDemonstration]:
    """Yield the conversations of a file of chat messages or of prompt/completion pairs."""
    for number, fields in _rows(path):
        try:
            yield _demonstration(number, fields)
        except ValueError as error:
            raise DemonstrationFileError(f"{path}, line {number}: {error}") from None


def _format_of(fields: Mapping[str, Any]) -> DataFormat:
    if fields.get("format") == TRAJECTORIES:
        return "trajectories"
    if "messages" in fields:
        return "chat messages"
    if "prompt" in fields and "completion" in fields:
        return "prompt/completion pairs"
    raise ValueError(f"its keys are {short(sorted(fields)) if fields else 'none'}; {EXPECTED}")


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a file with their line numbers; there is at least one."""
    number = 0
    empty = True
    try:
        for number, line in enumerate(
            read_lines(path.resolve(), max_line_bytes=MAX_LINE_BYTES), 1
        ):  # a user's own file may be a link
            if line.strip():
                empty = False
                yield number, parse_object(line)
    except UnreadableLines as error:
        raise DemonstrationFileError(f"{path} cannot be read: {error}") from None
    except ValueError as error:
        raise DemonstrationFileError(f"{path}, line {number}: {error}; {EXPECTED}") from None
    if empty:
        raise DemonstrationFileError(f"{path} is empty; {EXPECTED}")


def _demonstration(number: int, fields: Mapping[str, Any]) -> ChatDemonstration:
    if _format_of(fields) == "prompt/completion pairs":
        prompt = _entries(fields["prompt"], "prompt", "user")
        entries = prompt + _entries(fields["completion"], "completion", "assistant")
        first_trained = len(prompt)
    else:
        entries = _entries(fields.get("messages"), "messages", None)
        first_trained = 0
    messages = tuple(_message(entry, place) for entry, place in entries)
    for position, message in enumerate(messages):
        if message.role == "assistant" and (position == 0 or messages[position - 1].role == "assistant"):
            before = "the first message" if position == 0 else "after another assistant message"
            raise ValueError(
                f"{entries[position][1]} is the assistant's, {before}; expected a user or tool message before"
            )
    trained = frozenset(
        position
        for position, (entry, place) in enumerate(entries)
        if position >= first_trained and messages[position].role == "assistant" and _is_trained(entry, place)
    )
    if not trained:
        raise ValueError("no assistant message to train on; expected at least one")
    return ChatDemonstration(number, messages, _tools(fields.get("tools")), trained)


def _entries(value: Any, key: str, role: Role | None) -> list[tuple[Mapping[str, Any], str]]:
    """Return the messages of a key, each with a description of its place; a text is one message of the given role."""
    if isinstance(value, str) and role is not None:
        return [({"role": role, "content": value}, f'"{key}"')]
    if not isinstance(value, list) or not value:
        text = "" if role is None else "a text or "
        raise ValueError(f'"{key}" is {short(value)}; expected {text}a list of messages such as {MESSAGE}')
    for position, entry in enumerate(value, 1):
        if not isinstance(entry, dict):
            raise ValueError(f'message {position} of "{key}" is {short(entry)}; expected {MESSAGE}')
    return [(entry, f'message {position} of "{key}"') for position, entry in enumerate(value, 1)]


def _message(entry: Mapping[str, Any], place: str) -> Message:
    role = "system" if entry.get("role") == "developer" else entry.get("role")
    if role not in ROLES:
        raise ValueError(f"the role of {place} is {short(entry.get('role'))}; expected {', '.join(ROLES)}")
    if entry.get("function_call") is not None:
        raise ValueError(f'{place} has a "function_call"; expected "tool_calls", a list of {CALL}')
    calls = _tool_calls(entry.get("tool_calls"), place)
    if calls and role != "assistant":
        raise ValueError(f"{place} has tool calls and the role {role}; expected the role assistant")
    content = _content(entry.get("content"), place, optional=bool(calls))
    thought = entry.get("reasoning_content")
    if thought is not None and role == "assistant":
        if not isinstance(thought, str):
            raise ValueError(f'"reasoning_content" of {place} is {short(thought)}; expected a text')
        content = f"<think>\n{thought.strip()}\n</think>\n\n{content}" if thought.strip() else content
    if role == "assistant" and not content.strip() and not calls:
        raise ValueError(f"{place} is empty; expected a text or tool calls")
    return Message(cast("Role", role), content, calls)


def _content(value: Any, place: str, *, optional: bool) -> str:
    if value is None and optional:
        return ""
    if isinstance(value, list):
        texts = [part.get("text") for part in value if isinstance(part, dict) and part.get("type") == "text"]
        if len(texts) == len(value) and all(isinstance(text, str) for text in texts):
            return "".join(cast("list[str]", texts))
    if not isinstance(value, str):
        raise ValueError(f'"content" of {place} is {short(value)}; expected a text')
    return value


def _tool_calls(value: Any, place: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f'"tool_calls" of {place} is {short(value)}; expected a list of {CALL}')
    calls = []
    for entry in value:
        function = _function(entry)
        name = function.get("name")
        arguments = function.get("arguments")
        if isinstance(arguments, str):  # the API sends them as JSON in a text
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                raise ValueError(
                    f"the arguments of a tool call of {place} are {short(arguments)}; expected JSON"
                ) from None
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            raise ValueError(f"a tool call of {place} is {short(entry)}; expected {CALL}")
        calls.append(ToolCall(name, arguments))
    return tuple(calls)


def _is_trained(entry: Mapping[str, Any], place: str) -> bool:
    """Return whether an assistant message is trained on: not if its "weight" is 0, as in OpenAI's fine-tuning files."""
    weight = entry.get("weight", 1)
    if weight not in (0, 1, None):
        raise ValueError(f'"weight" of {place} is {short(weight)}; expected 0 or 1')
    return bool(weight != 0)


def _tools(value: Any) -> tuple[Tool, ...]:
    expected = '{"type": "function", "function": {"name": "...", "description": "...", "parameters": {...}}}'
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f'"tools" is {short(value)}; expected a list of {expected}')
    tools = []
    for entry in value:
        function = _function(entry)
        name = function.get("name")
        description = function.get("description") or ""
        parameters = function.get("parameters") or {}
        if not isinstance(name, str) or not isinstance(description, str) or not isinstance(parameters, dict):
            raise ValueError(f"a tool is {short(entry)}; expected {expected}")
        tools.append(Tool(name, description, parameters))
    return tuple(tools)


def _function(entry: Any) -> Mapping[str, Any]:
    """Return the function of a tool or of a tool call; empty if there is none."""
    function = entry.get("function") if isinstance(entry, dict) else None
    return function if isinstance(function, dict) else {}
