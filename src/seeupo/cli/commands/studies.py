"""`seeupo theory` and `seeupo study`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import seeupo
from seeupo.cli.options import check_outputs, not_empty
from seeupo.cli.terminal import Terminal, echo, note
from seeupo.utils.atomic_files import write_text


@click.command()
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
@click.option(
    "--problems", type=click.IntRange(min=4), default=20, show_default=True, help="Number of random problems per claim."
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False), callback=not_empty, metavar="FILE",
    help="Write claims, settings, figures and verdicts to FILE.",
)  # fmt: skip
@click.option(
    "--report", "report_dir", type=click.Path(file_okay=False), callback=not_empty, metavar="DIR",
    help="Write a report with a figure per claim to DIR (needs the extra 'figures').",
)  # fmt: skip
def theory(seed: int, problems: int, json_file: Path | None, report_dir: Path | None) -> None:
    """Test the claims of the paper numerically.

    The results show which claims hold, under which conditions, and by how much.
    """
    check_outputs(json_file, report_dir)

    from seeupo.studies import theory as study
    from seeupo.studies.theory.display import show

    started = time.monotonic()
    claims: list[study.Claim] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    messages = Terminal(stderr=True)
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task("Measuring claims", total=len(study.CLAIMS))
        for claim in study.measure(study.Scale(seed=seed, problems=problems)):
            claims.append(claim)
            progress.advance(task)
            if not messages.is_terminal:
                messages.print(f"{len(claims)} of {len(study.CLAIMS)}: {claim.title}: {claim.verdict}")
    claims.sort(key=lambda claim: claim.id)

    seconds = time.monotonic() - started
    if json_file:
        settings = {"version": seeupo.__version__, "seed": seed, "problems": problems}
        text = json.dumps({**settings, "claims": [claim.to_json() for claim in claims]}, indent=1)
        write_text(json_file, text + "\n")
    if report_dir:
        from seeupo.studies.theory.report import write_report

        write_report(claims, report_dir)
    show(claims, Terminal())
    messages.print(f"{len(claims)} claims in {seconds:.0f} s, seed {seed}, {problems} problems each.")
    for written in filter(None, (json_file, report_dir)):
        messages.print(f"Written: {written}")


@click.group()
def study() -> None:
    """Run studies that compare many training runs."""


def study_options(default_seeds: int, folder: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the argument and options of all studies."""
    options = [
        click.argument("recipe", default="tiny-pocket"),
        click.option(
            "--seeds", type=click.IntRange(min=1), default=default_seeds, show_default=True,
            help="Number of seeds, one run each.",
        ),
        click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs in parallel."),
        click.option("--threads", type=click.IntRange(min=1), help="Threads per run.  [default: number of cores]"),
        click.option(
            "--folder", type=click.Path(file_okay=False, path_type=Path), default=Path(folder), show_default=True,
            help="Directory of the runs; finished runs in it are reused.",
        ),
        click.option(
            "--json", "json_file", type=click.Path(dir_okay=False), callback=not_empty, metavar="FILE",
            help="Write the results to FILE.",
        ),
    ]  # fmt: skip

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def show_study(table: Mapping[str, Any], lines: Iterable[str], json_file: Path | None) -> None:
    if json_file:
        write_text(json_file, json.dumps(table, indent=1) + "\n")
    for line in lines:
        echo(line)


@study.command()
@study_options(10, "runs/reliability")
def reliability(
    *, recipe: str, seeds: int, jobs: int, threads: int | None, folder: Path, json_file: Path | None
) -> None:
    """Compare training with supervised learning on several seeds.

    The baseline of each run of RECIPE continues its warm start for as many optimizer steps.
    """
    from seeupo.config.loader import read_recipe
    from seeupo.studies.reliability import Study, markdown
    from seeupo.studies.runs import Runs

    check_outputs(json_file, None)
    read_recipe(recipe)  # before any run starts
    table = Study(Runs(recipe, folder, jobs, threads), seeds).run(note)
    show_study(table, markdown(table), json_file)


@study.command()
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False), callback=not_empty, metavar="FILE",
    help="Write settings, scores and verdicts to FILE.",
)  # fmt: skip
@click.option(
    "--report", "report_dir", type=click.Path(file_okay=False), callback=not_empty, metavar="DIR",
    help="Write tables and figures to DIR (needs the extra 'figures').",
)  # fmt: skip
def credit(seed: int, json_file: Path | None, report_dir: Path | None) -> None:
    """Score every method's weight per turn against the true advantage.

    On small problems the true advantage is known. The results show when the carried advantage M helps, and when not.
    """
    check_outputs(json_file, report_dir)

    from seeupo.studies import credit as study
    from seeupo.studies.credit.display import show

    order = study.settings()
    results: list[study.Scores] = []
    for scores in study.measure(seed):
        results.append(scores)
        note(f"{len(results)} of {len(order)}: {scores.setting.label}")
    results.sort(key=lambda scores: order.index(scores.setting))
    asked = study.questions(results)
    if json_file:
        table = {
            "version": seeupo.__version__,
            "seed": seed,
            "verdicts": [question.to_json() for question in asked],
            "settings": [scores.to_json() for scores in results],
        }
        write_text(json_file, json.dumps(table, indent=1) + "\n")
    if report_dir:
        from seeupo.studies.credit.report import write_report

        write_report(results, asked, report_dir)
    show(results, asked, Terminal())
    for written in filter(None, (json_file, report_dir)):
        note(f"Written: {written}")
