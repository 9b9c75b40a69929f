"""Select the trajectories in the page: complete groups of every iteration, within a limit of bytes, in one pass."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seeupo.report.chunks import ChunkWriter
from seeupo.report.index import TrajectoryIndex
from seeupo.report.intervals import IterationScores, score_intervals
from seeupo.report.packing import json_bytes
from seeupo.report.token_text import TokenDecoder
from seeupo.report.trajectory_view import trajectory_view
from seeupo.runs.reader import StoredRun
from seeupo.runs.trajectory_rows import TrajectoryRow, read_rows

TRAINING = 0
BEFORE = 1
AFTER = 2
"""Phases of a trajectory: training, the first evaluation, the last evaluation."""
MAX_GROUP_BYTES = 100_000_000
"""Bytes of a group before compression. Repetitive text compresses to little, but the page decodes whole groups."""
EVALUATION_SHARE = 0.2
"""Share of a run's bytes that the trajectories of one evaluation may take."""


@dataclass
class Selection:
    """The selected trajectories of a run.

    Attributes:
        totals, kept: Number of trajectories in the files, and in the page, by their kind: training or held-out.
        scores: Scores of each iteration.
        unreadable: Number of malformed trajectories, which are left out.
    """

    totals: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    scores: dict[int, IterationScores] = field(default_factory=dict)
    unreadable: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"total": self.totals.total(), "kept": self.kept.total(), "note": self._note()}

    def _note(self) -> str:
        """Return which trajectories are in the page, as text."""
        if not self.totals.total():
            return "This run has no trajectories."
        parts = []
        for kind in ("training", "held-out"):
            if total := self.totals[kind]:
                count = f"all {total:,}" if self.kept[kind] == total else f"{self.kept[kind]:,} of {total:,}"
                parts.append(f"{count} {kind} trajectories")
        contains = f"This page contains {' and '.join(parts)}."
        if self.kept == self.totals:
            return contains
        return (
            f"{contains} They are complete groups, drawn at random with a fixed seed; every iteration has an equal "
            "share of the page."
        )


@dataclass(frozen=True)
class TrajectorySelector:
    """Selects the trajectories of one run and writes them to the page's chunks and index.

    Attributes:
        run: The run; problems are added to its `missing`.
        number: Number of the run in the page.
        decoder: None if the run has no tokenizer.
    """

    run: StoredRun
    number: int
    decoder: TokenDecoder | None
    writer: ChunkWriter
    index: TrajectoryIndex
    selection: Selection = field(default_factory=Selection)

    def select(self, limit: int) -> Selection:
        """Add trajectories until `limit` bytes are used, evaluations first."""
        start = self.writer.used
        training = self.run.trajectories
        evaluations = _compared_evaluations(self.run)
        share = EVALUATION_SHARE if training else 1 / max(1, len(evaluations))
        for count, (phase, iteration) in enumerate(evaluations, 1):
            path = self.run.evaluation_trajectories[iteration]
            self._select_from_file(path, phase, iteration, limit=start + int((limit - start) * share * count))
        start = self.writer.used
        for count, (iteration, path) in enumerate(training.items(), 1):
            # Bytes that an iteration does not use are left to the next one.
            self._select_from_file(path, TRAINING, iteration, limit=start + (limit - start) * count // len(training))
        self.writer.finish_chunk()
        if self.selection.unreadable:
            self.run.missing.append(f"{self.selection.unreadable} trajectories are malformed and were left out.")
        return self.selection

    def _select_from_file(self, path: Path, phase: int, iteration: int, *, limit: int) -> None:
        file = read_rows(path)
        kind = "training" if phase == TRAINING else "held-out"
        selection = self.selection
        selection.totals[kind] += file.count
        if file.damage is not None:
            self.run.missing.append(file.damage)
        elif phase == TRAINING:
            bounded = self.run.setting("collect", "reward") in (None, "score")
            selection.scores[iteration] = score_intervals(list(file.groups.values()), bounded=bounded)
        # Both evaluations have the same order of tasks, so that the same ones are kept and can be compared.
        prefix = f"{iteration}/" if phase == TRAINING else ""
        for name in sorted(file.groups, key=lambda name: _shuffle_key(prefix + name)):
            rows, bodies = self._bodies(file.groups[name])
            if sum(map(len, bodies)) > MAX_GROUP_BYTES:
                size = f"more than {MAX_GROUP_BYTES / 1e6:g} MB of text"
                self.run.missing.append(f"{path.parent.name}/{path.name} has a group with {size}, which was left out.")
                continue
            selection.unreadable += len(file.groups[name]) - len(rows)
            if not rows:
                continue
            location = self.writer.add(bodies, limit)
            # Continuing with smaller groups would make short trajectories look frequent.
            if location is None:
                return
            self.index.add(rows, file.kinds, run=self.number, phase=phase, iteration=iteration, location=location)
            selection.kept[kind] += len(rows)

    def _bodies(self, group: Sequence[TrajectoryRow]) -> tuple[list[TrajectoryRow], list[bytes]]:
        """Return the well-formed rows of a group and their bodies."""
        rows = []
        bodies = []
        size = 0
        rewards = [row.reward for row in group]
        for row in group:
            if size > MAX_GROUP_BYTES:
                break
            try:
                body = json_bytes(trajectory_view(row.record(), rewards, self.decoder))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                continue
            rows.append(row)
            bodies.append(body)
            size += len(body)
        return rows, bodies


def _compared_evaluations(run: StoredRun) -> list[tuple[int, int]]:
    """Return phase and iteration of the evaluations whose trajectories are compared."""
    first, last = run.first_and_last
    before = 0 if first is None else first.iteration
    after = max(run.evaluation_trajectories, default=0) if last is None else last.iteration
    pairs = [(BEFORE, before), (AFTER, after)]
    if after == before:
        pairs.pop()
    return [(phase, iteration) for phase, iteration in pairs if iteration in run.evaluation_trajectories]


def _shuffle_key(name: str) -> bytes:
    """Return a sort key that puts groups into a random order which is always the same."""
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8, key=b"seeupo report").digest()
