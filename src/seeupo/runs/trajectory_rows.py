"""A file of trajectories, read as far as it can be read: groups of rows, each with its line for whoever wants more.

`seeupo.runs.trajectory_files` describes the format. Lines are read without making trajectories of them: most of a large
run's are only counted.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from seeupo.runs.trajectory_files import FORMAT, VERSION, upgraded
from seeupo.utils.numbers import finite_number

HELD = 8_000_000
"""Bytes of a file's lines that are held as they were understood; it takes several times the memory of the lines."""


class Row(NamedTuple):
    """What an index says of a trajectory, and the rest of it."""

    id: str
    group: str
    task: str
    stop: str
    status: str
    score: float | None
    reward: float | None
    advantage: float | None
    turns: int
    content: Mapping[str, Any] | bytes

    def record(self) -> Mapping[str, Any]:
        """All that the file says of it."""
        return upgraded(json.loads(self.content)) if isinstance(self.content, bytes) else self.content


@dataclass(frozen=True)
class ReadFile:
    """What a file holds.

    Attributes:
        groups: whole groups by name, in the order of the file.
        kinds: of tasks, as far as the header says.
        damage: what is wrong with it, or None.
    """

    groups: dict[str, list[Row]]
    kinds: dict[str, str]
    damage: str | None

    @property
    def count(self) -> int:
        return sum(map(len, self.groups.values()))


def read_file(path: Path) -> ReadFile:
    """Read a file; of one that is cut or damaged, the groups that are whole."""
    groups: dict[str, list[Row]] = {}
    kinds: dict[str, str] = {}
    count, size, damage = 0, 0, None
    try:
        lines = _lines(path)
        kinds = _kinds(json.loads(next(lines, b"")))
        for line in lines:
            size += len(line)
            row = _row(upgraded(json.loads(line)), None if size < HELD else line)
            groups.setdefault(row.group, []).append(row)
            count += 1
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        damage = f"{path.parent.name}/{path.name} is damaged"
        damage += f" behind its first {count} trajectories." if count else " and cannot be read."
        # Of a group that lost a member, neither mean nor comparison would be true.
        largest = max(map(len, groups.values()), default=0)
        groups = {name: rows for name, rows in groups.items() if len(rows) == largest}
    return ReadFile(groups, kinds, damage)


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():  # a pipe or a device may have no end
        raise OSError
    with gzip.open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                raise EOFError
            yield line


def _kinds(header: dict[str, Any]) -> dict[str, str]:
    if header["format"] != FORMAT or header["version"] > VERSION:
        raise ValueError(f"format {header['format']!r}, version {header['version']}")
    kinds = header.get("kinds")
    return {str(task): str(kind) for task, kind in kinds.items()} if isinstance(kinds, dict) else {}


def _row(record: Mapping[str, Any], line: bytes | None) -> Row:
    credit = record.get("credit") or {}
    return Row(
        id=str(record["id"]),
        group=str(record["group"]),
        task=str(record["task"]),
        stop=str(record["stop"]),
        status="ok" if record["failure"] is None else "failed",
        score=finite_number(record["score"]),
        reward=finite_number(record["reward"]) if record["failure"] is None else None,
        advantage=finite_number(credit.get("advantage")),
        turns=len(record["turns"]),
        content=record if line is None else line,
    )
