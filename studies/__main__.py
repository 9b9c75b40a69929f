"""`python -m studies`: measure the paper's claims, score credit per turn, and repeat a recipe over seeds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import seeupo
from seeupo.cli.errors import CommandGroup
from seeupo.cli.terminal import Terminal, echo, note
from seeupo.utils.atomic_files import write_text
from seeupo.utils.output_paths import check_output

seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
out_option = click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Write results, tables and figures to DIR.",
)  # fmt: skip


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run the studies that verify the paper."""


@main.command()
@seed_option
@click.option(
    "--problems", type=click.IntRange(min=4), default=20, show_default=True, help="Number of random problems per claim."
)
@out_option
def theory(seed: int, problems: int, out: Path | None) -> None:
    """Test the claims of the paper numerically.

    The results show which claims hold, under which conditions, and by how much.
    """
    from studies import theory as study
    from studies.theory.display import show
    from studies.theory.report import write_report

    create_folder(out)
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
    show(claims, Terminal())
    note(f"{len(claims)} claims in {time.monotonic() - started:.0f} s, seed {seed}, {problems} problems each.")
    if out:
        settings = {"version": seeupo.__version__, "seed": seed, "problems": problems}
        write_json(out / "theory.json", {**settings, "claims": [claim.to_json() for claim in claims]})
        note(f"Written: {write_report(claims, out)}")


@main.command()
@seed_option
@out_option
def credit(seed: int, out: Path | None) -> None:
    """Score every method's weight per turn against the true advantage.

    On small problems the true advantage is known. The results show when the carried advantage M helps, and when not.
    """
    from studies import credit as study
    from studies.credit.display import show
    from studies.credit.report import write_report

    create_folder(out)
    order = study.settings()
    results: list[study.Scores] = []
    for scores in study.measure(seed):
        results.append(scores)
        note(f"{len(results)} of {len(order)}: {scores.setting.label}")
    results.sort(key=lambda scores: order.index(scores.setting))
    questions = study.questions(results)
    show(results, questions, Terminal())
    if out:
        table = {
            "version": seeupo.__version__,
            "seed": seed,
            "verdicts": [question.to_json() for question in questions],
            "settings": [scores.to_json() for scores in results],
        }
        write_json(out / "credit.json", table)
        note(f"Written: {write_report(results, questions, out)}")


@main.command()
@click.argument("recipe", default="tiny-pocket")
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Number of seeds.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs in parallel.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads per run.  [default: number of cores]")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), default=Path("runs/reliability"), show_default=True,
    help="Directory of the runs; finished runs in it are reused.",
)  # fmt: skip
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the results to FILE.",
)  # fmt: skip
def reliability(
    *, recipe: str, seeds: int, jobs: int, threads: int | None, folder: Path, json_file: Path | None
) -> None:
    """Compare training with supervised learning on several seeds.

    The baseline of each run of RECIPE continues its warm start for as many optimizer steps.
    """
    from seeupo.config.loader import read_recipe
    from studies.reliability import Runs, Study, markdown

    check_output(folder, folder=True)
    if json_file:
        create_folder(check_output(json_file).parent)
    read_recipe(recipe)  # before any run starts
    table = Study(Runs(recipe, folder, jobs, threads), seeds).run(note)
    if json_file:
        write_json(json_file, table)
    for line in markdown(table):
        echo(line)


def create_folder(directory: Path | None) -> None:
    """Create the output directory before the work starts."""
    if directory:
        try:
            check_output(directory, folder=True).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.UsageError(f"{directory} cannot be created: {error.strerror}") from None


def write_json(path: Path, table: Any) -> None:
    write_text(check_output(path), json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(prog_name="python -m studies")
