"""The data of the page as chunks of gzipped JSON: overview of the runs, index of trajectories, and their bodies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import seeupo
from seeupo.errors import RunError
from seeupo.report.chunks import CHUNK_OVERHEAD, ChunkWriter
from seeupo.report.index import TrajectoryIndex
from seeupo.report.overview import run_overview
from seeupo.report.packing import base64_size, gzipped_json
from seeupo.report.selection import Selection, TrajectorySelector
from seeupo.report.token_text import TokenDecoder
from seeupo.runs.reader import StoredRun, read_run

FORMAT, VERSION = "seeupo-report", 1
RESERVED_BYTES = 20_000
"""Bytes for what reading the trajectories adds to the overview, besides intervals."""
INTERVAL_BYTES = 48
"""Bytes for the intervals of one iteration."""


@contextmanager
def report_chunks(
    runs: Sequence[Path], *, max_bytes: int
) -> Iterator[tuple[dict[str, Any], Iterator[tuple[str, bytes]]]]:
    """Provide the overview and all chunks of the page as (name, gzipped JSON), the overview first."""
    if not runs:
        raise RunError("no run given; name at least one run directory")
    with tempfile.TemporaryFile() as file:
        overview, index, bodies = _collect([read_run(path) for path in runs], file, max_bytes)

        def chunks() -> Iterator[tuple[str, bytes]]:
            yield "overview", gzipped_json(overview)
            yield "index", index.packed()
            for number, content in enumerate(bodies.chunks()):
                yield f"bodies-{number}", content

        yield overview, chunks()


def _collect(
    runs: Sequence[StoredRun], file: BinaryIO, max_bytes: int
) -> tuple[dict[str, Any], TrajectoryIndex, ChunkWriter]:
    """Read the trajectories of all runs once; each run may use an equal share of what the overview leaves."""
    names = _unique([run.name for run in runs])
    drafts = [run_overview(run, name, Selection()) for run, name in zip(runs, names, strict=True)]
    frame = base64_size(len(gzipped_json(_overview(drafts)))) + 2 * CHUNK_OVERHEAD + RESERVED_BYTES
    available = max(0, max_bytes - frame - INTERVAL_BYTES * sum(len(run.trajectories) for run in runs))
    writer, index = ChunkWriter(file), TrajectoryIndex()
    entries = []
    for number, run in enumerate(runs):
        limit = writer.used + max(0, available - writer.used) // (len(runs) - number)
        selection = TrajectorySelector(number, _decoder(run), writer, index).select(run, limit)
        entries.append(run_overview(run, names[number], selection))
    return _overview(entries), index, writer


def _overview(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, "written_by": f"seeupo {seeupo.__version__}", "runs": list(entries)}


def _decoder(run: StoredRun) -> TokenDecoder | None:
    try:
        return None if run.tokenizer is None else TokenDecoder(run.tokenizer)
    except ValueError:
        run.missing.append("The tokenizer cannot be read: responses are not split into tokens.")
        return None


def _unique(names: Sequence[str]) -> list[str]:
    """Number repeated names: links identify a run by its name, and two directories may have the same one."""
    found: list[str] = []
    for name in names:
        unique, count = name, 1
        while unique in found:
            count += 1
            unique = f"{name} ({count})"
        found.append(unique)
    return found
