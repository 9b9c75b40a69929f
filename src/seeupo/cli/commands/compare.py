"""`seeupo compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seeupo.cli.options import trust_options
from seeupo.cli.terminal import echo, note

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
    from seeupo.cli.trust import permissions_for
    from seeupo.comparison.study_file import read_study

    settings, recipe = read_study(study)
    from seeupo.cli.train_command import INTERRUPTED
    from seeupo.comparison.comparison import Comparison
    from seeupo.comparison.markdown import markdown
    from seeupo.comparison.result_store import PACKED, PAGE, TABLES, TEXT, Store
    from seeupo.comparison.run import compare, default_jobs, output_directory
    from seeupo.envs.trust import named_code

    directory = output_directory(study, out)
    permissions = permissions_for(
        named_code(recipe.environment.name, recipe.environment.options),
        in_process=settings.in_process_code(recipe),
        clusters=recipe.clusters,
        trust=trust,
        typed=(),
        unsandboxed=unsandboxed,
    )
    comparison = Comparison(settings, recipe, Store(directory, any_revision=any_revision), permissions.trust)
    jobs = jobs or default_jobs(settings)
    show_outline(comparison, directory, jobs, dry_run=dry_run)
    if dry_run:
        return
    try:
        table = compare(
            study,
            out=directory,
            jobs=jobs,
            keep_runs=keep_runs,
            any_revision=any_revision,
            trust=permissions.trust,
            unsandboxed=unsandboxed,
        )
    except KeyboardInterrupt:
        note("Stopped. Finished runs are kept; run the same command again to continue.")
        sys.exit(INTERRUPTED)
    for line in markdown(table):
        echo(line)
    note(f"page    {directory / PAGE}  (open it in a browser)")
    note(f"tables  {directory / TEXT}, {directory / TABLES}; runs in {directory / PACKED}")


def show_outline(comparison: Comparison, directory: Path, jobs: int, *, dry_run: bool) -> None:
    """Print what will run and how long it takes; with `dry_run`, the settings of each arm as well."""
    from seeupo.comparison.estimate import estimate
    from seeupo.comparison.markdown import settings_text
    from seeupo.comparison.planned_runs import differences

    show = echo if dry_run else note
    for label, text in (*estimate(comparison, jobs), ("output", str(directory))):
        show(f"{label:<12} {text}")
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
