"""Which trajectories are inside the page: whole groups of every iteration, within a limit of bytes; in one pass."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seeupo.report.chunks import Blocks
from seeupo.report.credit import story
from seeupo.report.index import Index, cost_of
from seeupo.report.intervals import Measured, measure
from seeupo.report.packing import json_bytes
from seeupo.report.token_text import Tokens
from seeupo.runs.reader import ReadRun
from seeupo.runs.trajectory_rows import Row, read_file

TRAINING, BEFORE, AFTER = 0, 1, 2
"""Phases. The last two are of the first and of the last evaluation."""
HELD_OUT_SHARE = 0.2
"""Of a run's bytes that the episodes of one evaluation may take."""


@dataclass
class Kept:
    """What the pass over a run came to.

    Attributes:
        totals, kept: trajectories in the files, and those inside the page: of training, and held out.
        measured: scores of each iteration.
        unreadable: trajectories that are left out because they are not as they should be.
    """

    totals: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    kept: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    measured: dict[int, Measured] = field(default_factory=dict)
    unreadable: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"total": sum(self.totals.values()), "kept": sum(self.kept.values()), "how": self._how()}

    def _how(self) -> str:
        """Which ones are inside, in words."""
        if not sum(self.totals.values()):
            return "There are no trajectories to look at."
        parts = []
        for held_out, name in ((False, "trajectories of training"), (True, "of held-out tasks")):
            total, kept = self.totals[held_out], self.kept[held_out]
            if total:
                parts.append(f"all {total:,} {name}" if kept == total else f"{kept:,} of {total:,} {name}")
        inside = f"Inside this page: {' and '.join(parts)}."
        if self.kept == self.totals:
            return inside
        return (
            f"{inside} They are whole groups, drawn at random with a fixed seed, as many as fit into an equal share of "
            "the page for each iteration."
        )


@dataclass(frozen=True)
class Pass:
    """Goes over the trajectories of one run.

    Attributes:
        run: its number.
        tokens: None where there is no tokenizer.
    """

    run: int
    tokens: Tokens | None
    blocks: Blocks
    index: Index

    def over(self, read: ReadRun, limit: int) -> Kept:
        """Keep what fits until `limit` bytes are used, held-out episodes first. What is wrong goes to `missing`."""
        kept = Kept()
        begin, held_out = self.blocks.used, _compared(read)
        share = HELD_OUT_SHARE if read.trajectories else 1 / max(1, len(held_out))
        for place, (phase, iteration) in enumerate(held_out, 1):
            until = begin + int((limit - begin) * share * place)
            self._file(read, read.held_out[iteration], kept, phase=phase, iteration=iteration, limit=until)
        begin = self.blocks.used
        for place, (iteration, path) in enumerate(read.trajectories.items(), 1):
            # What an iteration leaves is there for the next one.
            until = begin + (limit - begin) * place // len(read.trajectories)
            self._file(read, path, kept, phase=TRAINING, iteration=iteration, limit=until)
        self.blocks.close()
        if kept.unreadable:
            read.missing.append(f"{kept.unreadable} trajectories are not as they should be and are left out.")
        return kept

    def _file(self, read: ReadRun, path: Path, kept: Kept, *, phase: int, iteration: int, limit: int) -> None:
        file, held_out = read_file(path), phase != TRAINING
        kept.totals[held_out] += file.count
        if file.damage is not None:
            read.missing.append(file.damage)
        elif not held_out:
            kept.measured[iteration] = measure(list(file.groups.values()), str(read.setting("collect", "shape")))
        kinds = {**_known_kinds(read, iteration), **file.kinds} if held_out else file.kinds
        # The same tasks come first in both evaluations, so that they can be compared.
        for name in sorted(file.groups, key=lambda name: _drawn(name if held_out else f"{iteration}/{name}")):
            rows, bodies = self._bodies(file.groups[name])
            kept.unreadable += len(file.groups[name]) - len(rows)
            if not rows:
                continue
            place = self.blocks.add(bodies, limit, elsewhere=cost_of(rows))
            # To go on with smaller groups would make short ones look frequent.
            if place is None:
                return
            self.index.add(rows, kinds, run=self.run, phase=phase, iteration=iteration, place=place)
            kept.kept[held_out] += len(rows)

    def _bodies(self, group: Sequence[Row]) -> tuple[list[Row], list[bytes]]:
        """The rows that can be told, and their stories."""
        rows, bodies = [], []
        rewards = [row.reward for row in group]
        for row in group:
            try:
                body = json_bytes(story(row.record(), rewards, self.tokens))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                continue
            rows.append(row)
            bodies.append(body)
        return rows, bodies


def _compared(read: ReadRun) -> list[tuple[int, int]]:
    """The held-out episodes to be compared: their phase and the iteration of their evaluation."""
    first, last = (None if each is None else each.iteration for each in read.first_and_last)
    if first is None and 0 in read.held_out:
        first = 0
    if last is None:
        last = max((iteration for iteration in read.held_out if iteration), default=None)
    pairs = ((BEFORE, first), (AFTER, last))
    return [(phase, iteration) for phase, iteration in pairs if iteration is not None and iteration in read.held_out]


def _known_kinds(read: ReadRun, iteration: int) -> dict[str, str]:
    """The kinds of held-out tasks, which an evaluation knows as well."""
    found = [each.evaluation for each in read.evaluations if each.iteration == iteration]
    return {result.task: str(result.kind) for each in found for result in each.results.values()}


def _drawn(name: str) -> bytes:
    """Where a group stands in the order in which groups are taken: anywhere, and always there."""
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8, key=b"seeupo report").digest()
