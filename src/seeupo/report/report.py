"""Runs in, one page out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seeupo.errors import RunError
from seeupo.report.contents import report_blocks
from seeupo.report.page import write_page


@dataclass(frozen=True)
class ReportFacts:
    """What a report came to.

    Attributes:
        size: bytes of the page.
        sentences: did it work, one for each run.
        total, kept: trajectories of the runs, and those inside the page.
        missing: what each run lacks.
    """

    path: Path
    size: int
    sentences: tuple[str, ...]
    total: int
    kept: int
    missing: tuple[tuple[str, ...], ...]


def write_report(runs: Sequence[Path], out: Path, *, max_bytes: int = 25_000_000) -> ReportFacts:
    """Write the page of one run or of several to `out`, whole or not at all.

    Args:
        runs: folders of runs; what one of them lacks is said in the page.
        max_bytes: what the runs' data may take in it.
    """
    with report_blocks(runs, max_bytes=max_bytes) as (overview, blocks):
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_page(out, blocks)
        except OSError as error:
            raise RunError(
                f"{out} cannot be written: {error.strerror or error}; name a file that can be written"
            ) from error
    entries = overview["runs"]
    return ReportFacts(
        path=out,
        size=out.stat().st_size,
        sentences=tuple(entry["sentence"] for entry in entries),
        total=sum(entry["trajectories"]["total"] for entry in entries),
        kept=sum(entry["trajectories"]["kept"] for entry in entries),
        missing=tuple(tuple(entry["missing"]) for entry in entries),
    )
