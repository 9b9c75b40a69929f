"""The data of the page: an overview of the runs, an index of trajectories, and their bodies in blocks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import seeupo
from seeupo.errors import RunError
from seeupo.report.chunks import BLOCK_COST, Blocks
from seeupo.report.index import Index
from seeupo.report.overview import overview_of
from seeupo.report.packing import base64_size, packed
from seeupo.report.token_text import Tokens
from seeupo.report.trajectories import Kept, Pass
from seeupo.runs.reader import ReadRun, read_run

FORMAT, VERSION = "seeupo-report", 1
SPARE = 20_000
"""Bytes for what a pass over the trajectories adds to the overview besides intervals."""
INTERVAL_COST = 48
"""Bytes for the intervals of an iteration."""


@contextmanager
def report_blocks(
    runs: Sequence[Path], *, max_bytes: int
) -> Iterator[tuple[dict[str, Any], Iterator[tuple[str, bytes]]]]:
    """The overview, and all blocks of the page: (id, gzipped JSON), the overview first."""
    if not runs:
        raise RunError("no run was named; name the folder of at least one")
    with tempfile.TemporaryFile() as spool:
        overview, index, bodies = _collect([read_run(path) for path in runs], spool, max_bytes)

        def blocks() -> Iterator[tuple[str, bytes]]:
            yield "overview", packed(overview)
            yield "index", index.packed()
            for place, content in enumerate(bodies.read()):
                yield f"bodies-{place}", content

        yield overview, blocks()


def _collect(read: Sequence[ReadRun], spool: BinaryIO, max_bytes: int) -> tuple[dict[str, Any], Index, Blocks]:
    """One pass over the trajectories of all runs; every run may use the same share of what the overview leaves."""
    names = _unique([run.name for run in read])
    drafts = [overview_of(run, name, Kept()) for run, name in zip(read, names, strict=True)]
    frame = base64_size(len(packed(_overview(drafts)))) + 2 * BLOCK_COST + SPARE
    room = max(0, max_bytes - frame - INTERVAL_COST * sum(len(run.trajectories) for run in read))
    blocks, index = Blocks(spool), Index()
    found = []
    for number, run in enumerate(read):
        limit = blocks.used + max(0, room - blocks.used) // (len(read) - number)
        kept = Pass(number, _tokens(run), blocks, index).over(run, limit)
        found.append(overview_of(run, names[number], kept))
    return _overview(found), index, blocks


def _overview(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, "written_by": f"seeupo {seeupo.__version__}", "runs": list(entries)}


def _tokens(run: ReadRun) -> Tokens | None:
    """The run's tokenizer, if there is one that can be read."""
    try:
        return None if run.tokenizer is None else Tokens(run.tokenizer)
    except ValueError:
        run.missing.append("The tokenizer cannot be read: responses are shown whole, not token by token.")
        return None


def _unique(names: Sequence[str]) -> list[str]:
    """Folders of different places may have the same name, and a link names a run by it."""
    found: list[str] = []
    for name in names:
        wanted, count = name, 1
        while wanted in found:
            count += 1
            wanted = f"{name} ({count})"
        found.append(wanted)
    return found
