"""The data of the page as chunks of gzipped JSON: overview of the runs, index of trajectories, and their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def report_chunks(paths: Sequence[Path], *, max_bytes: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the overview, and all chunks of the page by name, as gzipped JSON.

    Args:
        paths: Run directories. Each may use an equal share of the bytes.
        max_bytes: Limit for the compressed trajectories.
    """
    if not paths:
        raise RunError("no run given; name at least one run directory")
    runs = [read_run(path) for path in paths]
    writer = ChunkWriter()
    index = TrajectoryIndex()
    names = UniqueNames()  # links identify a run by its name, and two directories may have the same one
    entries = []
    for number, run in enumerate(runs):
        limit = writer.used + (max_bytes - writer.used) // (len(runs) - number)
        selection = TrajectorySelector(run, number, _decoder(run), writer, index).select(limit)
        entries.append(run_overview(run, names.unique(run.name), selection))
    written_by = f"seeupo {seeupo.__version__}"
    overview = {"format": FORMAT, "version": VERSION, "written_by": written_by, "runs": entries}
    bodies = {f"bodies-{number}": content for number, content in enumerate(writer.chunks)}
    return overview, {"overview": gzipped_json(overview), "index": index.packed(), **bodies}


def _decoder(run: StoredRun) -> TokenDecoder | None:
    try:
        return None if run.tokenizer is None else TokenDecoder(run.tokenizer)
    except ValueError:
        run.missing.append("The tokenizer cannot be read: responses are not split into tokens.")
        return None
