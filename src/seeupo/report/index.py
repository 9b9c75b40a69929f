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
ROW_BYTES = 28
"""Upper bound for the bytes that the numbers of a row take in the page."""


class TrajectoryIndex:
    """One row per trajectory, stored as columns. Repeated texts are stored once and referred to by number."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, int]] = {name: {} for name in LISTS}
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._ids: set[tuple[int, int, str]] = set()
        self._repeats: dict[tuple[int, int, str], int] = {}

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
        for number, row in enumerate(rows):
            values = (
                run,
                phase,
                iteration,
                self._unique(run, phase, shortened(row.id)),
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

    def _unique(self, run: int, phase: int, name: str) -> str:
        """Number repeated ids: links identify a trajectory by its id, and files from elsewhere may repeat one."""
        unique, count = name, self._repeats.get((run, phase, name), 1)
        while (run, phase, unique) in self._ids:
            count += 1
            unique = f"{name}~{count}"
        self._ids.add((run, phase, unique))
        self._repeats[(run, phase, name)] = count
        return unique


def shortened(name: str) -> str:
    """Return a name of readable length."""
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..."


def max_index_bytes(rows: Sequence[TrajectoryRow]) -> int:
    """Return an upper bound for the bytes that the rows take in the page."""
    return sum(ROW_BYTES + len((row.id + row.group + row.task).encode(errors="replace")) for row in rows)
