"""Select the trajectories in the page: complete groups of every iteration, within a limit of bytes, in one pass."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seeupo.report.chunks import ChunkWriter
from seeupo.report.index import TrajectoryIndex, max_index_bytes
from seeupo.report.intervals import IterationScores, score_intervals
from seeupo.report.packing import json_bytes
from seeupo.report.token_text import TokenDecoder
from seeupo.report.trajectory_view import trajectory_view
from seeupo.runs.reader import StoredRun
from seeupo.runs.trajectory_rows import TrajectoryRow, read_rows

TRAINING, BEFORE, AFTER = 0, 1, 2
"""Phases of a trajectory: training, the first evaluation, the last evaluation."""
MAX_GROUP_BYTES = 100_000_000
"""Bytes of a group before compression. Repetitive text compresses to little, but the page decodes whole groups."""
EVALUATION_SHARE = 0.2
"""Share of a run's bytes that the trajectories of one evaluation may take."""


@dataclass
class Selection:
    """The selected trajectories of a run.

    Attributes:
        totals, kept: Number of trajectories in the files, and in the page, by whether they are held out.
        scores: Scores of each iteration.
        unreadable: Number of malformed trajectories, which are left out.
    """

    totals: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    kept: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    scores: dict[int, IterationScores] = field(default_factory=dict)
    unreadable: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"total": sum(self.totals.values()), "kept": sum(self.kept.values()), "note": self._note()}

    def _note(self) -> str:
        """Return which trajectories are in the page, as text."""
        if not sum(self.totals.values()):
            return "This run has no trajectories."
        parts = []
        for held_out, name in ((False, "training trajectories"), (True, "held-out trajectories")):
            total, kept = self.totals[held_out], self.kept[held_out]
            if total:
                parts.append(f"all {total:,} {name}" if kept == total else f"{kept:,} of {total:,} {name}")
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
        run: Number of the run in the page.
        decoder: None if the run has no tokenizer.
    """

    run: int
    decoder: TokenDecoder | None
    writer: ChunkWriter
    index: TrajectoryIndex

    def select(self, run: StoredRun, limit: int) -> Selection:
        """Add trajectories until `limit` bytes are used, evaluations first. Problems are added to `run.missing`."""
        selection = Selection()
        start, evaluations = self.writer.used, _compared_evaluations(run)
        share = EVALUATION_SHARE if run.trajectories else 1 / max(1, len(evaluations))
        for number, (phase, iteration) in enumerate(evaluations, 1):
            path, end = run.evaluation_trajectories[iteration], start + int((limit - start) * share * number)
            self._select_from_file(run, path, selection, phase=phase, iteration=iteration, limit=end)
        start = self.writer.used
        for number, (iteration, path) in enumerate(run.trajectories.items(), 1):
            # Bytes that an iteration does not use are left to the next one.
            end = start + (limit - start) * number // len(run.trajectories)
            self._select_from_file(run, path, selection, phase=TRAINING, iteration=iteration, limit=end)
        self.writer.finish_chunk()
        if selection.unreadable:
            run.missing.append(f"{selection.unreadable} trajectories are malformed and were left out.")
        return selection

    def _select_from_file(
        self, run: StoredRun, path: Path, selection: Selection, *, phase: int, iteration: int, limit: int
    ) -> None:
        file, held_out = read_rows(path), phase != TRAINING
        selection.totals[held_out] += file.count
        if file.damage is not None:
            run.missing.append(file.damage)
        elif not held_out:
            bounded = run.setting("collect", "reward") in (None, "score")
            selection.scores[iteration] = score_intervals(list(file.groups.values()), bounded=bounded)
        kinds = {**_evaluation_kinds(run, iteration), **file.kinds} if held_out else file.kinds
        # Both evaluations have the same order of tasks, so that the same ones are kept and can be compared.
        for name in sorted(file.groups, key=lambda name: _shuffle_key(name if held_out else f"{iteration}/{name}")):
            rows, bodies = self._bodies(file.groups[name])
            if sum(map(len, bodies)) > MAX_GROUP_BYTES:
                size = f"more than {MAX_GROUP_BYTES / 1e6:g} MB of text"
                run.missing.append(f"{path.parent.name}/{path.name} has a group with {size}, which was left out.")
                continue
            selection.unreadable += len(file.groups[name]) - len(rows)
            if not rows:
                continue
            location = self.writer.add(bodies, limit, index_bytes=max_index_bytes(rows))
            # Continuing with smaller groups would make short trajectories look frequent.
            if location is None:
                return
            self.index.add(rows, kinds, run=self.run, phase=phase, iteration=iteration, location=location)
            selection.kept[held_out] += len(rows)

    def _bodies(self, group: Sequence[TrajectoryRow]) -> tuple[list[TrajectoryRow], list[bytes]]:
        """Return the well-formed rows of a group and their bodies."""
        rows, bodies, size = [], [], 0
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
    first, last = (None if each is None else each.iteration for each in run.first_and_last)
    if first is None and 0 in run.evaluation_trajectories:
        first = 0
    if last is None:
        last = max((iteration for iteration in run.evaluation_trajectories if iteration), default=None)
    pairs = ((BEFORE, first), (AFTER, last))
    return [(phase, n) for phase, n in pairs if n is not None and n in run.evaluation_trajectories]


def _evaluation_kinds(run: StoredRun, iteration: int) -> dict[str, str]:
    """Return the kinds of held-out tasks as the evaluation's results have them."""
    found = [each.evaluation for each in run.evaluations if each.iteration == iteration]
    return {result.task: str(result.kind) for each in found for result in each.results.values()}


def _shuffle_key(name: str) -> bytes:
    """Return a sort key that puts groups into a random order which is always the same."""
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8, key=b"seeupo report").digest()
