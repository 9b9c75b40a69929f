"""Write the report of one or more runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seeupo.errors import RunError
from seeupo.report.html_page import write_page
from seeupo.report.payload import report_chunks


@dataclass(frozen=True)
class ReportSummary:
    """A written report.

    Attributes:
        path: The HTML file.
        size: Size of the file in bytes.
        sentences: Verdict on each run, with its scores.
        total, kept: Number of trajectories in the runs, and in the report.
        missing: For each run, sentences about missing or damaged parts.
    """

    path: Path
    size: int
    sentences: tuple[str, ...]
    total: int
    kept: int
    missing: tuple[tuple[str, ...], ...]


def write_report(
    runs: Path | str | Sequence[Path | str], out: Path | str, *, max_bytes: int = 25_000_000
) -> ReportSummary:
    """Write the report of one or more runs to `out`, completely or not at all.

    Args:
        runs: Run directory, or several, which may be incomplete or damaged.
        out: The HTML file to write.
        max_bytes: Limit for the data of the runs in the file.

    Returns:
        Size, sentences about the runs, and the number of trajectories that are in the file.
    """
    run_dirs = [Path(runs)] if isinstance(runs, Path | str) else [Path(run) for run in runs]
    out = Path(out)
    with report_chunks(run_dirs, max_bytes=max_bytes) as (overview, chunks):
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_page(out, chunks)
        except OSError as error:
            raise RunError(f"{out} cannot be written: {error.strerror or error}; choose a writable file") from error
    entries = overview["runs"]
    return ReportSummary(
        path=out,
        size=out.stat().st_size,
        sentences=tuple(f"{entry['verdict_label']}: {entry['sentence']}" for entry in entries),
        total=sum(entry["trajectories"]["total"] for entry in entries),
        kept=sum(entry["trajectories"]["kept"] for entry in entries),
        missing=tuple(tuple(entry["missing"]) for entry in entries),
    )
