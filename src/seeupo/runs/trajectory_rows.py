"""Trajectory files as rows for the report: damaged files are read as far as possible.

`seeupo.runs.trajectory_files` describes the format. Records are not turned into trajectories here, because most
trajectories of a large run are only counted.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from seeupo.runs.trajectory_files import MALFORMED, trajectory_lines
from seeupo.utils.json_lines import UnreadableLines
from seeupo.utils.numbers import finite_number

MAX_NAME = 1000
"""Characters of a name that are kept; the page shows fewer."""


class TrajectoryRow(NamedTuple):
    """The values of a trajectory that the report's index needs, and its record.

    Attributes:
        status: "ok", or "failed" after an infrastructure failure.
        score, reward, advantage: None if there is none or it is not a finite number.
        turns: Number of turns.
        line: The compressed record, which takes a fraction of the memory of a parsed one.
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
    line: bytes

    def record(self) -> dict[str, Any]:
        """Return the whole record."""
        return dict(json.loads(zlib.decompress(self.line)))


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
    count = 0
    damage = None
    try:
        lines = trajectory_lines(path)
        kinds = _kinds(json.loads(next(lines)))
        for line in lines:
            row = _row(line)
            groups.setdefault(row.group, []).append(row)
            count += 1
    except (UnreadableLines, *MALFORMED) as error:
        reason = "" if isinstance(error, MALFORMED) else f": {error}"
        damage = f"{path.parent.name}/{path.name} is damaged after its first {count} trajectories{reason}."
    if damage is not None:
        # The mean of a group that lost a member would be wrong.
        largest = max(map(len, groups.values()), default=0)
        groups = {name: rows for name, rows in groups.items() if len(rows) == largest}
    return TrajectoryRows(groups, kinds, damage)


def _kinds(header: Mapping[str, Any]) -> dict[str, str]:
    kinds = header.get("kinds")
    return {str(task): str(kind) for task, kind in kinds.items()} if isinstance(kinds, dict) else {}


def _row(line: bytes) -> TrajectoryRow:
    record = json.loads(line)
    credit = record.get("credit") or {}
    failed = record["failure"] is not None
    return TrajectoryRow(
        id=str(record["id"])[:MAX_NAME],
        group=str(record["group"])[:MAX_NAME],
        task=str(record["task"])[:MAX_NAME],
        stop=str(record["stop"])[:MAX_NAME],
        status="failed" if failed else "ok",
        score=finite_number(record["score"]),
        reward=None if failed else finite_number(record["reward"]),
        advantage=finite_number(credit.get("advantage")),
        turns=len(record["turns"]),
        line=zlib.compress(line, level=1),  # which takes less time than parsing
    )
