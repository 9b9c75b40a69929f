"""`seeupo envs`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from seeupo.cli.options import env_options

if TYPE_CHECKING:
    from seeupo.rollout.scripted import CheckResult


@click.group()
def envs() -> None:
    """Environments to train in: what there is, installing, checking and playing them."""


@envs.command("list")
def list_envs() -> None:
    """List the environments: what they are, how many tasks they have, their licence, and whether they are installed."""
    from seeupo.envs.install import installed
    from seeupo.envs.registry import lookup, names

    table = Table(box=None, pad_edge=False)
    for column in ("name", "installed", "tasks", "licence", "what it is"):
        table.add_column(column, no_wrap=column == "name")
    for name in names():
        spec = lookup(name)
        state = "yes" if installed(spec) else "no"
        table.add_row(name, state, spec.tasks or "unknown", spec.licence or "unknown", spec.summary)
    Console().print(table)


@envs.command("install")
@click.argument("name")
def install_env(name: str) -> None:
    """Make the interpreter of the environment NAME, with its packages; nothing of it enters this one."""
    from seeupo.envs.install import install
    from seeupo.envs.registry import lookup

    folder = install(lookup(name), report=lambda text: click.echo(text, err=True))
    click.echo(f"{name} is installed in {folder}")


@envs.command("check")
@click.argument("name")
@click.option("--split", "splits", multiple=True, help="Only this split; may be given several times.")
@click.option("--tasks", type=click.IntRange(min=1), help="At most so many tasks of each split.")
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes; by default one per core, up to 8.")
@env_options
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def check_env(
    *,
    name: str,
    splits: tuple[str, ...],
    tasks: int | None,
    workers: int | None,
    options: dict[str, object],
    as_json: bool,
) -> None:
    """Run the expert and a no-op policy in NAME through the whole stack, and print how many tasks they solve.

    Exits with an error if the expert fails a task, if the no-op policy solves one, or if an episode fails.
    """
    from seeupo.envs.pool.pool import EnvPool
    from seeupo.envs.registry import lookup
    from seeupo.rollout.scripted import check_environment

    rows, found, good = [], [], True
    spec = lookup(name)
    for extra in ({}, *spec.ceilings):
        with EnvPool(spec, options={**options, **extra}, workers=workers) as pool:
            chosen = splits or pool.splits
            for result in check_environment(pool, chosen, ("expert",) if extra else ("expert", "no-op"), tasks=tasks):
                good = good and (not result.failures if extra else result.as_expected)
                found.append({"options": {**options, **extra}, **result.to_json()})
                rows.append((result, extra))
    if as_json:
        click.echo(json.dumps({"environment": name, "good": good, "results": found}, indent=1))
    else:
        show_check(rows)
    if not good:
        sys.exit(1)


def show_check(rows: Sequence[tuple[CheckResult, Mapping[str, Any]]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("split", "policy", "solved", "episodes/s", "turns", "failed", "options"):
        table.add_column(column)
    for result, extra in rows:
        numbers = result.to_json()
        table.add_row(
            result.split,
            result.policy,
            f"{result.solved}/{len(result.episodes)}",
            f"{numbers['episodes_per_second']}",
            f"{numbers['mean_turns']:.1f}",
            str(len(result.failures)),
            ", ".join(f"{key}={value}" for key, value in extra.items()),
        )
    Console().print(table)
    for result, _ in rows:
        for failure in result.failures[:3]:
            click.echo(f"failed: {failure}", err=True)


@envs.command("play")
@click.argument("name")
@click.option("--task", "wanted", help="The task's id; by default the first one of the first split.")
@click.option("--split", help="The split that the task is from.")
@env_options
def play_env(name: str, wanted: str | None, split: str | None, options: dict[str, object]) -> None:
    """Play an episode of NAME yourself: you see what the model would see. End with Ctrl-D to be scored as you stand."""
    from seeupo.cli.play import play
    from seeupo.envs.pool.pool import EnvPool
    from seeupo.errors import EnvError, suggest

    def ask() -> str | None:
        lines: list[str] = []
        try:
            # A block of code that was opened goes on to its closing fence.
            while not lines or sum(line.startswith("```") for line in lines) == 1:
                lines.append(str(click.prompt("..." if lines else "action", default="", show_default=False)))
        except click.Abort:
            click.echo()
            return None
        return "\n".join(lines)

    with EnvPool(name, options=options, workers=1) as pool:
        tasks = [task for each in ([split] if split else pool.splits) for task in pool.tasks(each)]
        task = next((task for task in tasks if wanted in (None, task.id)), None)
        if task is None:
            raise EnvError(f"{name} has no task {wanted!r}; {suggest(wanted or '', [task.id for task in tasks][:50])}")
        click.echo(f"task {task.id} of {task.split}" + (f", {task.kind}" if task.kind else ""))
        score, turns = play(pool.env(), task, seed=task.seed, show=click.echo, ask=ask)
    click.echo(f"score {score:g} after {turns} actions")
