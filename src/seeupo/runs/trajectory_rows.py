"""Trajectory files as rows for the report: damaged files are read as far as possible.

`seeupo.runs.trajectory_files` describes the format. Records are not turned into trajectories here, because most
trajectories of a large run are only counted.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from seeupo.runs.trajectory_files import MALFORMED, parse_header, upgraded
from seeupo.utils.numbers import finite_number

MAX_PARSED_BYTES = 8_000_000
"""Bytes of a file that are kept as parsed records, which take several times the memory of the lines."""


class TrajectoryRow(NamedTuple):
    """The values of a trajectory that the report's index needs, and its record.

    Attributes:
        status: "ok", or "failed" after an infrastructure failure.
        score, reward, advantage: None if there is none or it is not a finite number.
        turns: Number of turns.
        content: The record, or its line in a large file.
    """

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
        """Return the whole record, in the current format version."""
        return upgraded(json.loads(self.content)) if isinstance(self.content, bytes) else self.content


@dataclass(frozen=True)
class TrajectoryRows:
    """The rows of a file.

    Attributes:
        groups: Complete groups by name, in the order of the file.
        kinds: Kinds of tasks, as far as the header has them.
        damage: A sentence about what is wrong with the file, or None.
    """

    groups: dict[str, list[TrajectoryRow]]
    kinds: dict[str, str]
    damage: str | None

    @property
    def count(self) -> int:
        return sum(map(len, self.groups.values()))


def read_rows(path: Path) -> TrajectoryRows:
    """Read a file; a truncated or damaged one yields the groups that are complete."""
    groups: dict[str, list[TrajectoryRow]] = {}
    kinds: dict[str, str] = {}
    count, size, damage = 0, 0, None
    try:
        lines = _lines(path)
        kinds = _kinds(parse_header(next(lines, b"")))
        for line in lines:
            size += len(line)
            row = _row(upgraded(json.loads(line)), line if size >= MAX_PARSED_BYTES else None)
            groups.setdefault(row.group, []).append(row)
            count += 1
    except (OSError, EOFError, zlib.error, *MALFORMED):
        damage = f"{path.parent.name}/{path.name} is damaged"
        damage += f" after its first {count} trajectories." if count else " and cannot be read."
        # The mean of a group that lost a member would be wrong.
        largest = max(map(len, groups.values()), default=0)
        groups = {name: rows for name, rows in groups.items() if len(rows) == largest}
    return TrajectoryRows(groups, kinds, damage)


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():  # a pipe or a device may have no end
        raise OSError
    with gzip.open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                raise EOFError
            yield line


def _kinds(header: Mapping[str, Any]) -> dict[str, str]:
    kinds = header.get("kinds")
    return {str(task): str(kind) for task, kind in kinds.items()} if isinstance(kinds, dict) else {}


def _row(record: Mapping[str, Any], line: bytes | None) -> TrajectoryRow:
    credit = record.get("credit") or {}
    failed = record["failure"] is not None
    return TrajectoryRow(
        id=str(record["id"]),
        group=str(record["group"]),
        task=str(record["task"]),
        stop=str(record["stop"]),
        status="failed" if failed else "ok",
        score=finite_number(record["score"]),
        reward=None if failed else finite_number(record["reward"]),
        advantage=finite_number(credit.get("advantage")),
        turns=len(record["turns"]),
        content=record if line is None else line,
    )
