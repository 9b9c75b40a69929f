"""`compare`: run a study file from its first run to tables and page. Python and the command line call it."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from seeupo.comparison.analysis import analyze
from seeupo.comparison.compare_display import CompareDisplay
from seeupo.comparison.comparison import Comparison
from seeupo.comparison.execution import Execution, run_comparison
from seeupo.comparison.markdown import markdown
from seeupo.comparison.result_store import PAGE, TABLES, TEXT, Store
from seeupo.comparison.study_file import Study, read_study
from seeupo.envs.trust import Permissions, check_trust
from seeupo.errors import TrainingError
from seeupo.report.write import write_comparison
from seeupo.utils.atomic_files import write_text
from seeupo.utils.terminal import Terminal


def compare(
    study: Path | str,
    *,
    out: Path | str | None = None,
    jobs: int | None = None,
    keep_runs: bool = False,
    any_revision: bool = False,
    trust: Collection[str] = (),
    unsandboxed: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Train the arms of a study with all its seeds, compare them, and write tables and a page.

    Finished runs in the output directory are not repeated, so a comparison that was stopped continues. If it is stopped
    by Ctrl-C or by a run that fails, the tables have the seeds that are finished.

    Args:
        study: Name of a shipped study, or path of a TOML file.
        out: Output directory; runs/compare-STUDY by default. It gets comparison.html, comparison.md and
            comparison.json.
        jobs: Number of runs in parallel; as many as the cores allow by default.
        keep_runs: Keep the run directory of every run, in `work`.
        any_revision: Accept finished runs of another training revision.
        trust: Code that the study and its recipe may name, and the address of the recipe's Ray cluster.
        unsandboxed: Run environment workers without a sandbox.
        progress: Show progress on standard error.

    Returns:
        The content of comparison.json: scores, paired differences with verdicts, stability and cost of each arm.
    """
    settings, recipe = read_study(str(study))
    check_trust(settings.needs_consent(recipe), trust)
    comparison = Comparison(settings, recipe, Store(output_directory(study, out), any_revision=any_revision), trust)
    execution = Execution(jobs or default_jobs(settings), Permissions(tuple(trust), unsandboxed), keep_runs)
    display = CompareDisplay(Terminal(stderr=True, quiet=not progress), comparison.counts())
    try:
        with display:
            run_comparison(comparison, execution, display)
    except (KeyboardInterrupt, TrainingError):
        if finished := len(comparison.finished_seeds()):
            write_outputs(comparison, study_name(study))
            display.print(f"{finished} of {len(settings.seeds)} seeds are in {comparison.store.path / PAGE}.")
        raise
    return write_outputs(comparison, study_name(study))


def study_name(study: Path | str) -> str:
    return Path(study).name.removesuffix(".toml")


def output_directory(study: Path | str, out: Path | str | None) -> Path:
    return Path("runs") / f"compare-{study_name(study)}" if out is None else Path(out)


def default_jobs(study: Study) -> int:
    """Return the number of runs that the cores allow at a time."""
    return max(1, (os.cpu_count() or 1) // study.threads)


def write_outputs(comparison: Comparison, name: str) -> dict[str, Any]:
    """Write JSON, Markdown and the page of the finished seeds, and return the content of the JSON."""
    directory = comparison.store.path
    table = analyze(comparison, name)
    write_text(directory / TABLES, json.dumps(table, indent=1) + "\n")
    write_text(directory / TEXT, "\n".join(markdown(table)) + "\n")
    write_comparison(table, directory / PAGE)
    return table
