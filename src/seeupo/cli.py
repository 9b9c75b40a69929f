"""The command line. Commands parse, call, and print; the work is done elsewhere."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import seeupo


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(seeupo.__version__, prog_name="seeupo")
def main() -> None:
    """Train language-model agents over many turns by sequence-level sequential policy updates."""


@main.command()
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all random problems.")
@click.option(
    "--problems",
    type=click.IntRange(min=4),
    default=20,
    show_default=True,
    help="Random problems per claim; more take longer and say more.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write claims, settings, figures and verdicts to FILE.",
)
@click.option(
    "--report",
    "report_dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a report with a figure per claim to DIR (needs the extra 'figures').",
)
def theory(seed: int, problems: int, json_file: Path | None, report_dir: Path | None) -> None:
    """Measure the claims of the paper, and say which hold, where, and by how much."""
    if json_file and not json_file.resolve().parent.is_dir():
        raise click.BadParameter(f"{json_file.parent} is not a folder; make it first", param_hint="--json")
    if report_dir and importlib.util.find_spec("matplotlib") is None:
        raise click.BadParameter("needs matplotlib: pip install 'seeupo[figures]'", param_hint="--report")

    from seeupo.studies import theory as study
    from seeupo.studies.theory.display import show

    started = time.monotonic()
    claims: list[study.Claim] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    messages = Console(stderr=True)
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task("Measuring claims", total=len(study.CLAIMS))
        for claim in study.measure(study.Scale(seed=seed, problems=problems)):
            claims.append(claim)
            progress.advance(task)
            if not messages.is_terminal:
                messages.print(f"{len(claims)} of {len(study.CLAIMS)}: {claim.title}: {claim.verdict}")
    claims.sort(key=lambda claim: claim.id)

    show(claims, Console())
    messages.print(
        f"{len(claims)} claims in {time.monotonic() - started:.0f} s, seed {seed}, {problems} problems each."
    )
    if json_file:
        facts = {"version": seeupo.__version__, "seed": seed, "problems": problems}
        text = json.dumps({**facts, "claims": [claim.to_json() for claim in claims]}, indent=1)
        write_whole(json_file, text)
        messages.print(f"Figures: {json_file}")
    if report_dir:
        from seeupo.studies.theory.report import write_report

        messages.print(f"Report: {write_report(claims, report_dir)}")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there complete or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
