"""Reads a JSONL file of prompts. What is wrong with it is said all at once, line by line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, cast

from seeupo.errors import EnvError
from seeupo.types import Message, Role

ROLES = ("system", "user", "assistant")
MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file. `fields` is all that stands there, for the reward function."""

    id: str
    kind: str
    messages: tuple[Message, ...]
    fields: Mapping[str, Any]
    place: str


def read_rows(path: Path) -> dict[str, Row]:
    """The rows of a file by id, in their order. `EnvError` if there are none, or names every line that is wrong."""
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
                raise ValueError(f"its id {short(row.id)} is that of {rows[row.id].place} too")
            rows[row.id] = row
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    if problems:
        more = f"\n  and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        listed = "".join(f"\n  {problem}" for problem in problems[:MOST_PROBLEMS])
        raise EnvError(f"{path}: these lines have to be mended or removed:{listed}{more}")
    if not rows:
        raise EnvError(f'{path} is empty; each of its lines should be a JSON object such as {{"prompt": "2 + 2 ="}}')
    return rows


def read_row(line: bytes, number: int, path: Path) -> Row:
    """The row of one line; `ValueError` says what is wrong."""
    try:
        fields = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos + 1})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError(f"a JSON object is needed, and this is {type(fields).__name__}")
    if "prompt" not in fields:
        raise ValueError('there is no "prompt"')
    name = fields.get("id", f"{number:06d}")
    kind = fields.get("kind", "")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise ValueError(f'"id" should be a text or a whole number and is {short(name)}')
    if not isinstance(kind, str):
        raise ValueError(f'"kind" should be a text and is {short(kind)}')
    return Row(str(name), kind, read_prompt(fields["prompt"]), fields, f"line {number} of {path.name}")


def read_prompt(prompt: Any) -> tuple[Message, ...]:
    """A text is a message of the user; a list holds messages as chat formats write them."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f'"prompt" should be a text or a list of messages and is {short(prompt)}')
    messages = []
    for message in prompt:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise ValueError('each message of "prompt" should have a "role" and a "content", and nothing else')
        if message["role"] not in ROLES:
            raise ValueError(f"the role {short(message['role'])} is none of {', '.join(ROLES)}")
        if not isinstance(message["content"], str) or not message["content"]:
            raise ValueError(f'a "content" should be a text, not empty, and is {short(message["content"])}')
        messages.append(Message(cast("Role", message["role"]), message["content"]))
    if messages[-1].role != "user":
        raise ValueError(f"the last message of \"prompt\" should be the user's and is the {messages[-1].role}'s")
    return tuple(messages)
