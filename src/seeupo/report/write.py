"""Write the report of one or more runs, and the page of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seeupo.errors import RunError
from seeupo.report.html_page import COMPARISON_PAGE, REPORT_PAGE, Layout, write_page
from seeupo.report.packing import gzipped_json
from seeupo.report.payload import report_chunks
from seeupo.utils.output_paths import check_output


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
        max_bytes: Limit for the trajectories in the file; beyond it, complete groups are selected at random.

    Returns:
        Size, sentences about the runs, and the number of trajectories that are in the file.
    """
    run_dirs = [Path(runs)] if isinstance(runs, Path | str) else [Path(run) for run in runs]
    out = check_output(Path(out))
    overview, chunks = report_chunks(run_dirs, max_bytes=max_bytes // 4 * 3)  # the page has them as base64
    _write(out, chunks, REPORT_PAGE)
    entries = overview["runs"]
    return ReportSummary(
        path=out,
        size=out.stat().st_size,
        sentences=tuple(_sentence(entry) for entry in entries),
        total=sum(entry["trajectories"]["total"] for entry in entries),
        kept=sum(entry["trajectories"]["kept"] for entry in entries),
        missing=tuple(tuple(entry["missing"]) for entry in entries),
    )


def _sentence(entry: Mapping[str, Any]) -> str:
    stopped = "" if entry["stopped"] is None else f" {entry['stopped']}"
    return f"{entry['verdict_label']}: {entry['sentence']}{stopped}"


def write_comparison(table: Mapping[str, Any], path: Path) -> None:
    """Write the page of a comparison from its tables, completely or not at all."""
    _write(path, {"comparison": gzipped_json(table)}, COMPARISON_PAGE)


def _write(path: Path, chunks: Mapping[str, bytes], layout: Layout) -> None:
    check_output(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_page(path, chunks, layout)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}; choose a writable file") from error
