"""The data of the page as chunks of gzipped JSON: overview of the runs, index of trajectories, and their bodies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import seeupo
from seeupo.errors import RunError
from seeupo.report.chunks import ChunkWriter
from seeupo.report.index import TrajectoryIndex, UniqueNames
from seeupo.report.overview import run_overview
from seeupo.report.packing import gzipped_json
from seeupo.report.selection import TrajectorySelector
from seeupo.report.token_text import TokenDecoder
from seeupo.runs.reader import StoredRun, read_run

FORMAT, VERSION = "seeupo-report", 1


@contextmanager
def report_chunks(
    runs: Sequence[Path], *, max_bytes: int
) -> Iterator[tuple[dict[str, Any], Iterator[tuple[str, bytes]]]]:
    """Provide the overview and all chunks of the page as (name, gzipped JSON), the overview first.

    Args:
        max_bytes: Limit for the compressed trajectories.
    """
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
    """Read the trajectories of all runs once; each run may use an equal share of the bytes."""
    writer = ChunkWriter(file)
    index = TrajectoryIndex()
    names = UniqueNames()  # links identify a run by its name, and two directories may have the same one
    entries = []
    for number, run in enumerate(runs):
        limit = writer.used + (max_bytes - writer.used) // (len(runs) - number)
        selection = TrajectorySelector(number, _decoder(run), writer, index).select(run, limit)
        entries.append(run_overview(run, names.unique(run.name), selection))
    written_by = f"seeupo {seeupo.__version__}"
    return {"format": FORMAT, "version": VERSION, "written_by": written_by, "runs": entries}, index, writer


def _decoder(run: StoredRun) -> TokenDecoder | None:
    try:
        return None if run.tokenizer is None else TokenDecoder(run.tokenizer)
    except ValueError:
        run.missing.append("The tokenizer cannot be read: responses are not split into tokens.")
        return None
