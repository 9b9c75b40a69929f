"""`seeupo envs`: list, install, write, check and play environments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from seeupo.cli.options import env_options, unsandboxed_option
from seeupo.cli.terminal import Terminal, echo, echo_json, echo_text, note, prompt
from seeupo.utils.text import counted

if TYPE_CHECKING:
    from seeupo.evaluation.scripted import CheckResult


SHOWN_FAILURES = 3


@click.group()
def envs() -> None:
    """List, install, write, check and play environments."""


@envs.command("list")
def list_envs() -> None:
    """List all environments with their tasks and licenses, and whether they are installed."""
    from seeupo.envs.install import installed
    from seeupo.envs.registry import lookup, names

    table = Table(box=None, pad_edge=False)
    for column in ("name", "installed", "description"):
        table.add_column(column, no_wrap=column == "name")
    for name in names():
        spec = lookup(name)
        state = "yes" if installed(spec) else "no"
        rest = f"tasks: {spec.tasks or 'unknown'}; license: {spec.license or 'unknown'}"
        table.add_row(name, state, f"{spec.summary} ({rest})")
    Terminal().print(table)


@envs.command("install")
@click.argument("name")
def install_env(name: str) -> None:
    """Install the packages of environment NAME into a separate interpreter."""
    from seeupo.envs.install import install
    from seeupo.envs.registry import lookup

    folder = install(lookup(name), report=note)
    echo(f"{name} is installed in {folder}")


@envs.command("new")
@click.argument("name")
def new_env(name: str) -> None:
    """Write NAME.py, the skeleton of a custom environment, and test_NAME.py into the current directory."""
    from seeupo.utils.skeletons import ENVIRONMENT

    reference, (module, test) = ENVIRONMENT.write(name, Path())
    echo(f"written  {module}  (a small working environment; replace its game with yours)")
    echo(f"written  {test}  (run it with: pytest {test})")
    echo(f"check    seeupo envs check {reference}")
    echo(f"train    seeupo train custom --environment.name {reference}")


@envs.command("check")
@click.argument("name")
@click.option("--split", "splits", multiple=True, help="Check only this split; may be repeated.")
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    help="Maximum number of tasks per split, spread evenly over it.  [default: 100]",
)
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes.  [default: one per core, up to 8]")
@env_options
@unsandboxed_option
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def check_env(
    *,
    name: str,
    splits: tuple[str, ...],
    tasks: int | None,
    workers: int | None,
    options: dict[str, object],
    unsandboxed: bool,
    as_json: bool,
) -> None:
    """Run the experts and a no-op policy in environment NAME, and print how many tasks they solve.

    NAME is a name of `seeupo envs list`, or the factory of a custom environment: my_module:MyFactory.
    Exits with status 1 if the expert fails a task, the no-op policy solves one, an episode fails, or the vocabulary
    lacks words.
    """
    from seeupo.cli.commands.evaluation import ProgressBar
    from seeupo.envs.pool.pool import EnvPool
    from seeupo.envs.trust import strings_in
    from seeupo.errors import EnvError
    from seeupo.evaluation.scripted import check_environment, vocabulary_problem

    typed = tuple(strings_in([name, options]))
    with (
        EnvPool(name, options=options, workers=workers, trust=typed, unsandboxed=unsandboxed) as pool,
        ProgressBar() as bar,
    ):
        results = list(check_environment(pool, splits or pool.splits, tasks=tasks, callback=bar))
        problems = [result.problem for result in results if result.problem is not None]
        words = set(pool.vocabulary())
        if not problems and (lacking := vocabulary_problem(pool, words, pool.tasks(results[0].split))) is not None:
            problems = [lacking]
    if as_json:
        records = [{"options": options, **result.to_json()} for result in results]
        echo_json({"environment": name, "passed": not problems, "vocabulary": len(words), "results": records})
    else:
        show_check(results)
        if words:
            echo(f"vocabulary: {counted(len(words), 'word')}")
    if problems:
        show_failures([failure for result in results for failure in result.failures])
        raise EnvError(f"{name} did not pass the check", *problems)


def show_check(results: Sequence[CheckResult]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("split", "policy", "solved", "episodes/s", "turns", "failed"):
        table.add_column(column)
    for result in results:
        numbers = result.to_json()
        table.add_row(
            result.split,
            result.policy,
            f"{result.solved}/{len(result.episodes)}",
            f"{numbers['episodes_per_second']}",
            f"{numbers['mean_turns']:.1f}",
            str(len(result.failures)),
        )
    Terminal().print(table)
    for split, (checked, count) in {result.split: (len(result.episodes), result.tasks) for result in results}.items():
        if checked < count:
            echo(f"{split}: {checked} of {count} tasks, evenly spread; --tasks {count} checks all")


def show_failures(failures: Sequence[str]) -> None:
    """Print the first failure with its traceback, and the first line of some others."""
    for number, failure in enumerate(failures[:SHOWN_FAILURES]):
        line, *traceback = failure.split("\n")
        note(f"failed: {line}")
        for line in traceback if number == 0 else ():
            note(f"  {line}")
    if len(failures) > SHOWN_FAILURES:
        note(f"{len(failures) - SHOWN_FAILURES} more episodes failed")


@envs.command("play")
@click.argument("name")
@click.option("--task", "task_id", help="Task id.  [default: the first task of the split]")
@click.option("--split", help="Task split.  [default: the first one that has the task]")
@env_options
@unsandboxed_option
def play_env(
    *, name: str, task_id: str | None, split: str | None, options: dict[str, object], unsandboxed: bool
) -> None:
    """Play an episode of environment NAME by hand, as a model would see it. Ctrl-D ends it and prints the score.

    NAME is a name of `seeupo envs list`, or the factory of a custom environment: my_module:MyFactory.
    """
    from seeupo.cli.play import play
    from seeupo.envs.pool.pool import EnvPool
    from seeupo.envs.trust import strings_in
    from seeupo.errors import EnvError, suggest

    def ask() -> str | None:
        lines: list[str] = []
        try:
            # Read a code block up to its closing fence.
            while not lines or sum(line.startswith("```") for line in lines) == 1:
                lines.append(prompt("..." if lines else "action"))
        except click.Abort:
            echo()
            return None
        return "\n".join(lines)

    typed = tuple(strings_in([name, options]))
    with EnvPool(name, options=options, workers=1, trust=typed, unsandboxed=unsandboxed) as pool:
        tasks = [task for name in ([split] if split else pool.splits) for task in pool.tasks(name)]
        if not tasks:
            pool.first_tasks(split or pool.splits[0], None)  # raises
        task = next((task for task in tasks if task_id in (None, task.id)), None)
        if task is None:
            raise EnvError(f"{name} has no task {task_id!r}; {suggest(task_id or '', [task.id for task in tasks])}")
        echo(f"task {task.id} of {task.split}" + (f", {task.kind}" if task.kind else ""))
        score, turns = play(pool.env(), task, seed=task.seed, show=echo_text, ask=ask)
    echo(f"score {score:g} after {turns} actions")
