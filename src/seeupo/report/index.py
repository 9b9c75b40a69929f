"""The index of the trajectories inside the page: what people filter by, and where each body is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seeupo.report.packing import packed, rounded
from seeupo.runs.trajectory_rows import Row

LISTS = ("tasks", "kinds", "stops", "statuses")
COLUMNS = (
    "run", "phase", "iteration", "id", "group", "task", "kind", "stop", "status", "reward", "advantage", "turns",
    "block", "place",
)  # fmt: skip
LONGEST_NAME = 300
NUMBERS_COST = 24
"""Bytes that the numbers of a row take in the page, generously."""


class Index:
    """One row per trajectory, in columns. Texts that repeat are written once, and named by their place."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, int]] = {name: {} for name in LISTS}
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._taken: set[tuple[int, int, str]] = set()

    def __len__(self) -> int:
        return len(self._columns["run"])

    def add(
        self,
        rows: Sequence[Row],
        kinds: Mapping[str, str],
        *,
        run: int,
        phase: int,
        iteration: int,
        place: tuple[int, int],
    ) -> None:
        """Add a group: `place` is its block and the place of its first body there."""
        for number, row in enumerate(rows):
            values = (
                run,
                phase,
                iteration,
                self._unique(run, phase, short(row.id)),
                short(row.group),
                self._place("tasks", row.task),
                self._place("kinds", kinds.get(row.task, "")),
                self._place("stops", row.stop),
                self._place("statuses", row.status),
                rounded(row.reward),
                rounded(row.advantage),
                row.turns,
                place[0],
                place[1] + number,
            )
            for name, value in zip(COLUMNS, values, strict=True):
                self._columns[name].append(value)

    def packed(self) -> bytes:
        """The index as the page takes it."""
        lists = {name: list(places) for name, places in self._lists.items()}
        return packed({"rows": len(self), "lists": lists, "columns": self._columns})

    def _place(self, name: str, text: str) -> int:
        places = self._lists[name]
        return places.setdefault(short(text), len(places))

    def _unique(self, run: int, phase: int, name: str) -> str:
        """A link names a trajectory by its id, and files that somebody else wrote may use one twice."""
        wanted, count = name, 1
        while (run, phase, wanted) in self._taken:
            count += 1
            wanted = f"{name}~{count}"
        self._taken.add((run, phase, wanted))
        return wanted


def short(name: str) -> str:
    """A name as people can read it."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."


def cost_of(rows: Sequence[Row]) -> int:
    """Bytes that these rows take in the page at most."""
    return sum(NUMBERS_COST + len((row.id + row.group + row.task).encode(errors="replace")) for row in rows)
