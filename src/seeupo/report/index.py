"""The index of the trajectories in the page: the values to filter by, and where each body is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seeupo.report.packing import gzipped_json, rounded
from seeupo.runs.trajectory_rows import TrajectoryRow

LISTS = ("tasks", "kinds", "stops", "statuses")
COLUMNS = (
    "run", "phase", "iteration", "id", "group", "task", "kind", "stop", "status", "score", "reward", "advantage",
    "turns", "chunk", "offset",
)  # fmt: skip
MAX_NAME = 300


class TrajectoryIndex:
    """One row per trajectory, stored as columns. Repeated texts are stored once and referred to by number."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, int]] = {name: {} for name in LISTS}
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._ids: dict[tuple[int, int], UniqueNames] = {}

    def __len__(self) -> int:
        return len(self._columns["run"])

    def add(
        self,
        rows: Sequence[TrajectoryRow],
        kinds: Mapping[str, str],
        *,
        run: int,
        phase: int,
        iteration: int,
        location: tuple[int, int],
    ) -> None:
        """Add a group; `location` is its chunk and the offset of its first body there."""
        chunk, offset = location
        # Links identify a trajectory by its id, and files from elsewhere may repeat one.
        ids = self._ids.setdefault((run, phase), UniqueNames())
        for number, row in enumerate(rows):
            values = (
                run,
                phase,
                iteration,
                ids.unique(shortened(row.id)),
                shortened(row.group),
                self._number("tasks", row.task),
                self._number("kinds", kinds.get(row.task, "")),
                self._number("stops", row.stop),
                self._number("statuses", row.status),
                rounded(row.score),
                rounded(row.reward),
                rounded(row.advantage),
                row.turns,
                chunk,
                offset + number,
            )
            for name, value in zip(COLUMNS, values, strict=True):
                self._columns[name].append(value)

    def packed(self) -> bytes:
        """Return the index as gzipped JSON."""
        lists = {name: list(numbers) for name, numbers in self._lists.items()}
        return gzipped_json({"rows": len(self), "lists": lists, "columns": self._columns})

    def _number(self, name: str, text: str) -> int:
        numbers = self._lists[name]
        return numbers.setdefault(shortened(text), len(numbers))


class UniqueNames:
    """Numbers repeated names."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Return the name, or the name with the first number that makes it a new one."""
        number = self._counts.get(name, 0)
        unique = name
        while unique in self._counts:
            number += 1
            unique = f"{name} ({number})"
        self._counts[unique] = 1
        self._counts[name] = max(number, 1)
        return unique


def shortened(name: str) -> str:
    """Return a name of readable length."""
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..."
