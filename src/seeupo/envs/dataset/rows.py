"""Read a JSONL file of prompts, and report all malformed lines at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, cast

from seeupo.errors import EnvError
from seeupo.types import Message, Role
from seeupo.utils.json_lines import parse_object

ROLES = ("system", "user", "assistant")
MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file; `fields` is the whole JSON object, for the reward function."""

    id: str
    kind: str
    messages: tuple[Message, ...]
    fields: Mapping[str, Any]
    place: str


def read_rows(path: Path) -> dict[str, Row]:
    """Return the rows of a file by id, in order; `EnvError` lists every malformed line."""
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise EnvError(f"{path} cannot be read: {error.strerror or error}") from None
    rows: dict[str, Row] = {}
    problems = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = read_row(line, number, path)
            if row.id in rows:
                raise ValueError(f"its id {short(row.id)} is already used in {rows[row.id].place}")
            rows[row.id] = row
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    if problems:
        more = f"\n  and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        listed = "".join(f"\n  {problem}" for problem in problems[:MOST_PROBLEMS])
        raise EnvError(f"{path}: fix or remove these lines:{listed}{more}")
    if not rows:
        raise EnvError(f'{path} is empty; expected one JSON object per line, such as {{"prompt": "2 + 2 ="}}')
    return rows


def read_row(line: bytes, number: int, path: Path) -> Row:
    """Return the row of one line; raise `ValueError` if it is malformed."""
    fields = parse_object(line)
    if "prompt" not in fields:
        raise ValueError('"prompt" is missing')
    name = fields.get("id", f"{number:06d}")
    kind = fields.get("kind", "")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise ValueError(f'"id" is {short(name)}; expected a string or an integer')
    if not isinstance(kind, str):
        raise ValueError(f'"kind" is {short(kind)}; expected a string')
    return Row(str(name), kind, read_prompt(fields["prompt"]), fields, f"line {number} of {path.name}")


def read_prompt(prompt: Any) -> tuple[Message, ...]:
    """Return the messages of a prompt: a string is one user message, a list has messages with role and content."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f'"prompt" is {short(prompt)}; expected a string or a list of messages')
    messages = []
    for message in prompt:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise ValueError('each message of "prompt" must have a "role" and a "content", and nothing else')
        if message["role"] not in ROLES:
            raise ValueError(f"role is {short(message['role'])}; expected one of {', '.join(ROLES)}")
        if not isinstance(message["content"], str) or not message["content"]:
            raise ValueError(f'"content" is {short(message["content"])}; expected a nonempty string')
        messages.append(Message(cast("Role", message["role"]), message["content"]))
    if messages[-1].role != "user":
        raise ValueError(f'the last message of "prompt" has the role {messages[-1].role}; expected user')
    return tuple(messages)
