"""`seeupo compare`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seeupo.cli.options import trust_options
from seeupo.cli.terminal import Terminal, echo, note
from seeupo.errors import TrainingError

if TYPE_CHECKING:
    from seeupo.comparison.comparison import Comparison


@click.command("compare")
@click.argument("study", metavar="STUDY")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Output directory; finished runs in it are not repeated.  [default: runs/compare-STUDY]",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), help="Runs in parallel.  [default: cores / threads of a run]")
@click.option("--dry-run", is_flag=True, help="Show arms, runs and the time they need, without training.")
@click.option("--keep-runs", is_flag=True, help="Keep the run directory of every run, in DIR/work.")
@click.option("--any-revision", is_flag=True, help="Accept finished runs of another training revision.")
@trust_options
def compare_command(
    *,
    study: str,
    out: Path | None,
    jobs: int | None,
    dry_run: bool,
    keep_runs: bool,
    any_revision: bool,
    trust: tuple[str, ...],
    unsandboxed: bool,
) -> None:
    """Compare algorithms and settings on one recipe.

    STUDY is a name (smoke) or a TOML file with arms, seeds and what is matched; see docs/guides/compare.md. Each arm is
    tuned on the same grid, starts from the same policies and spends equally. Stop it at any moment and run the same
    command again to continue.
    """
    from seeupo.cli.train_command import INTERRUPTED
    from seeupo.cli.trust import permissions_for
    from seeupo.comparison.comparison import Comparison
    from seeupo.comparison.execution import Execution, run_comparison
    from seeupo.comparison.result_store import PACKED, Store
    from seeupo.comparison.study_file import read_study
    from seeupo.envs.trust import named_code

    name = Path(study).name.removesuffix(".toml")
    read, recipe = read_study(study)
    directory = out or Path("runs") / f"compare-{name}"
    settings = recipe.environment
    permissions = permissions_for(
        named_code(settings.name, settings.options),
        in_process=read.algorithm_code,
        trust=trust,
        typed=(),
        unsandboxed=unsandboxed,
    )
    comparison = Comparison(read, recipe, Store(directory, any_revision=any_revision), permissions.trust)
    jobs = jobs or max(1, (os.cpu_count() or 1) // read.threads)
    show_outline(comparison, directory, jobs, dry_run=dry_run)
    if dry_run:
        return
    execution = Execution(jobs, permissions, keep_runs)
    from seeupo.comparison.compare_display import CompareDisplay

    try:
        with CompareDisplay(Terminal(stderr=True), comparison.counts()) as display:
            run_comparison(comparison, execution, display)
    except KeyboardInterrupt:
        write_finished_seeds(comparison, name, directory)
        note("Stopped. Finished runs are kept; run the same command again to continue.")
        sys.exit(INTERRUPTED)
    except TrainingError:
        write_finished_seeds(comparison, name, directory)
        raise
    for line in write_outputs(comparison, name, directory):
        echo(line)
    note(f"page    {directory / 'comparison.html'}  (open it in a browser)")
    note(f"tables  {directory / 'comparison.md'}, {directory / 'comparison.json'}; runs in {directory / PACKED}")


def show_outline(comparison: Comparison, directory: Path, jobs: int, *, dry_run: bool) -> None:
    """Print what will run and how long it takes; with `dry_run`, the settings of each arm as well."""
    from seeupo.comparison.estimate import estimate
    from seeupo.comparison.markdown import settings_text
    from seeupo.comparison.planned_runs import differences

    show = echo if dry_run else note
    expected = estimate(comparison, jobs)
    for phase, (count, finished) in expected.phases.items():
        if count:
            show(f"{phase:<12} {count}" + (f", {finished} finished" if finished else ""))
    show(f"{'time':<12} {expected.text}, {jobs} at a time")
    show(f"{'output':<12} {directory}")
    if dry_run:
        seed = comparison.study.seeds[0]
        for arm in comparison.study.arms:
            settings = list(differences(comparison.planner.run(arm, seed, {}), comparison.recipe))
            show(f"{arm:<12} {settings_text(settings)}")
        for key, values in comparison.planner.values.items():
            show(f"{'tuned':<12} {key} in {values}")
        units = ", ".join(f"{arm}: {unit or 'as it is'}" for arm, unit in comparison.units.items())
        match = comparison.study.match
        show(f"{'matched':<12} " + ("nothing" if match == "none" else f"{match.replace('_', ' ')}, by {units}"))


def write_finished_seeds(comparison: Comparison, name: str, directory: Path) -> None:
    """Write tables and page of a comparison that was stopped, if it has finished seeds."""
    if seeds := comparison.finished_seeds():
        write_outputs(comparison, name, directory)
        note(f"{len(seeds)} of {len(comparison.study.seeds)} seeds are in {directory / 'comparison.html'}.")


def write_outputs(comparison: Comparison, name: str, directory: Path) -> list[str]:
    """Write JSON, Markdown and the page of the finished seeds, and return the lines of the Markdown."""
    import json

    from seeupo.comparison.analysis import analyze
    from seeupo.comparison.markdown import markdown
    from seeupo.report.comparison_page import write_comparison
    from seeupo.utils.atomic_files import write_text

    table: dict[str, Any] = analyze(comparison, name)
    lines = list(markdown(table))
    write_text(directory / "comparison.json", json.dumps(table, indent=1) + "\n")
    write_text(directory / "comparison.md", "\n".join(lines) + "\n")
    write_comparison(table, directory / "comparison.html")
    return lines
