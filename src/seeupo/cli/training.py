"""`seeupo train`, `report`, `recipes` and `algorithms`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console


@click.command("train", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("recipe", required=False)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The run's folder, new or empty.")
@click.option("--resume", "resumed", type=click.Path(path_type=Path), metavar="RUN", help="Go on with a run.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
def train_command(
    recipe: str | None, overrides: tuple[str, ...], out: Path | None, resumed: Path | None, dry_run: bool
) -> None:
    """Train an agent as RECIPE says: a name (see `seeupo recipes list`) or a TOML file; by default tiny-pocket.

    Any key of the recipe can be given as --section.key VALUE, for instance --run.seed 1 or --algorithm.order natural.
    Ctrl-C finishes the step under way and saves; a second one stops at once.
    """
    from seeupo.api import report_of_run
    from seeupo.cli.train_command import run_training, show_plan

    if recipe is not None and recipe.startswith("--"):  # the first override, if no recipe was named
        overrides, recipe = (recipe, *overrides), None
    if dry_run and resumed is not None:
        raise click.UsageError("--dry-run shows what a new run would do; leave --resume out")
    if dry_run:
        show_plan(recipe, overrides)
    else:
        sys.exit(run_training(recipe, overrides, out=out, resumed=resumed, on_finish=report_of_run))


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Where the page goes.  [default: report.html in the run, or here if there are several]",
)  # fmt: skip
@click.option(
    "--max-mb", type=click.IntRange(min=1, max=27), default=25, show_default=True,
    help="What the runs' data may take; of larger runs a sample of the trajectories is kept.",
)  # fmt: skip
def report(*, runs: tuple[Path, ...], out: Path | None, max_mb: int) -> None:
    """Write one page that shows a run, or several side by side: curves, turns, and every trajectory's credit.

    The page needs no network and no server: open it in a browser. Runs that were killed or damaged have one as well,
    which says what is missing.
    """
    from seeupo.report.report import write_report
    from seeupo.runs.run_directory import REPORT

    found = write_report(runs, out or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT)), max_bytes=max_mb * 10**6)
    for sentence, missing in zip(found.sentences, found.missing, strict=True):
        click.echo(sentence)
        for text in missing:
            click.echo(f"  missing: {text}")
    click.echo(f"{found.path}: {found.size / 10**6:.1f} MB, {found.kept} of {found.total} trajectories inside")


@click.group()
def recipes() -> None:
    """Complete training runs that come with this package."""


@recipes.command("list")
def list_recipes() -> None:
    """List the recipes, each with the first line of what it says about itself."""
    from seeupo.config.loader import recipe_names, recipe_text

    for name in recipe_names():
        click.echo(f"{name:<16} {recipe_text(name).partition(chr(10))[0].removeprefix('# ')}")


@recipes.command("show")
@click.argument("name")
def show_recipe(name: str) -> None:
    """Print a recipe; `seeupo recipes show NAME > my.toml` is a way to begin one of your own."""
    from seeupo.config.loader import recipe_text

    click.echo(recipe_text(name), nl=False)


@recipes.command("schema")
def show_schema() -> None:
    """Print the JSON schema of a recipe, for editors."""
    from seeupo.config.json_schema import recipe_schema

    click.echo(json.dumps(recipe_schema(), indent=2))


@click.group()
def algorithms() -> None:
    """What can be trained with: how it works, what is proved of it, what it costs."""


@algorithms.command("list")
def list_algorithms() -> None:
    """List the algorithms: what they are made of, what the paper claims of them, and their cost."""
    from seeupo.cli.algorithm_cards import show_list

    show_list(Console())


@algorithms.command("show")
@click.argument("name")
def show_algorithm(name: str) -> None:
    """Print everything about the algorithm NAME: idea, formula, guarantees, cost, when to use it, options."""
    from seeupo.algorithms import ALGORITHMS
    from seeupo.cli.algorithm_cards import show_algorithm
    from seeupo.errors import UserError, suggest

    if name not in ALGORITHMS:
        raise UserError(f"there is no algorithm {name[:60]!r}; {suggest(name[:60].lower(), list(ALGORITHMS))}")
    show_algorithm(name, Console())
