"""The body of `seeupo train`: read recipe and overrides, show progress, print the result."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from rich.table import Table

from seeupo.cli.terminal import Terminal, echo, note
from seeupo.cli.trust import permissions_for
from seeupo.config.loader import parse_value, read_recipe
from seeupo.config.schema import DEFAULT_ITERATIONS, Recipe
from seeupo.core.statistics import format_estimate
from seeupo.envs.trust import Permissions, named_code
from seeupo.errors import TrainingError
from seeupo.runs.run_directory import RECIPE, REPORT, RunDirectory
from seeupo.training.interrupts import Interrupted
from seeupo.training.preparation import default_recipe, next_run_dir
from seeupo.training.run import TrainingResult, resume, train
from seeupo.training.train_display import make_display, result_line

SECTIONS = tuple(section.name for section in fields(Recipe))
CODE_SECTIONS = ("environment", "algorithm", "collect")
"""Sections whose values may name code."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs from --section.key value or --section.key=value."""
    pairs, rest = [], list(arguments)
    while rest:
        key, equals, value = rest.pop(0).partition("=")
        if not key.startswith("--") or not ("." in key or key[2:] in SECTIONS):
            raise TrainingError(
                f"{key!r} is not an option. Override recipe keys like this: --run.seed 1 "
                "(docs/reference/configuration.md)"
            )
        if not equals:
            if not rest:
                raise TrainingError(f"{key} needs a value")
            value = rest.pop(0)
        pairs.append((key[2:], value))
    return pairs


def run_training(
    recipe_name: str | None,
    overrides: Sequence[str],
    *,
    out: Path | None,
    resumed: Path | None,
    accept_changes: bool,
    trust: Sequence[str],
    unsandboxed: bool,
) -> int:
    """Train or resume with a progress display, and return the exit code."""
    pairs = parse_overrides(overrides)
    if resumed is not None:
        if recipe_name is not None or out is not None:
            raise TrainingError("--resume uses the run's own recipe and directory; leave out RECIPE and --out")
        path = resumed
        recipe = read_recipe(str(RunDirectory.open(resumed).path / RECIPE), pairs)
    else:
        recipe_name = recipe_name or default_recipe(dict(pairs).get("environment.name"))
        recipe = read_recipe(recipe_name, pairs)
        path = out or next_run_dir(recipe_name)
    permissions = permissions_of(recipe, pairs, trust, unsandboxed=unsandboxed)
    display = make_display(Terminal(stderr=True))
    try:
        if resumed is None:
            result = train(recipe, run_dir=path, trust=permissions.trust, unsandboxed=unsandboxed, progress=display)
        else:
            result = resume(
                path,
                changes={key: parse_value(value) for key, value in pairs},
                accept_changes=accept_changes,
                trust=permissions.trust,
                unsandboxed=unsandboxed,
                progress=display,
            )
    except KeyboardInterrupt as stop:
        stopped = "Stopped and saved. Resume"
        if not isinstance(stop, Interrupted):
            stopped = "Stopped. Resume from the last checkpoint"
        note(f"{stopped} with: seeupo train --resume {path}{trust_flags(recipe)}")
        return INTERRUPTED
    show_result(result, recipe)
    return 0


def trust_flags(recipe: Recipe) -> str:
    """Return the options with which later commands trust the code that the recipe names."""
    return "".join(f" --trust {shlex.quote(code)}" for code in recipe.code)


def permissions_of(
    recipe: Recipe, pairs: Sequence[tuple[str, str]], trust: Sequence[str], *, unsandboxed: bool
) -> Permissions:
    """Return what the user allows. Code that overrides name is trusted, because the user typed it."""
    typed = [parse_value(value) for key, value in pairs if key.partition(".")[0] in CODE_SECTIONS]
    settings = recipe.environment
    return permissions_for(
        named_code(settings.name, settings.options),
        in_process=recipe.in_process_code,
        trust=trust,
        typed=typed,
        unsandboxed=unsandboxed,
    )


def show_result(result: TrainingResult, recipe: Recipe) -> None:
    """Print the scores before and after, the paths of the results, and the next commands."""
    summary, k = result.summary, result.summary["k"]
    columns = [when for when in ("before", "after", "difference") if summary[when] is not None]
    table = Table(box=None, pad_edge=False)
    for column in (f"{summary['tasks']} held-out tasks", *columns):
        table.add_column(column)
    for name in (f"avg@{k}", f"pass@{k}"):
        scores = {when: summary[when][name] for when in columns}
        cells = (format_estimate(estimate, signed=when == "difference", digits=2) for when, estimate in scores.items())
        table.add_row(name, *cells)
    echo()
    for warning in summary["warnings"]:
        echo(f"warning: {warning}")
    echo(result_line(summary))
    Terminal().print(table)
    if result.policy.is_dir():
        echo(f"policy    {result.policy}  (after iteration {summary['iterations']}; loads in transformers and vLLM)")
    echo(f"best      {best_line(result)}")
    if (page := result.run_dir / REPORT).exists():
        echo(f"report    {page}  (open it in a browser)")
    echo(f"run       {result.run_dir}  (summary.json, metrics.jsonl, trajectories: docs/reference/run-directory.md)")
    flags = trust_flags(recipe)
    if summary["warnings"]:
        echo(f"look      seeupo agents show --model {result.run_dir}{flags}  (one rollout, token by token)")
    echo(f"evaluate  seeupo eval {result.run_dir}{flags}  (or a checkpoint: --checkpoint best)")
    echo(f"export    seeupo export {result.run_dir} OUT  (or a checkpoint: --best)")
    more = 2 * recipe.run.total_iterations or DEFAULT_ITERATIONS
    echo(f"continue  seeupo train --resume {result.run_dir} --run.iterations {more}{flags}")


def best_line(result: TrainingResult) -> str:
    """Return where the policy with the best held-out score is."""
    summary = result.summary
    best = summary["best"]
    score = f"avg@{summary['k']} {best['avg']:.2f} after iteration {best['iteration']}"
    if best["iteration"] == summary["iterations"]:
        return f"the policy above  ({score})"
    if best["checkpoint"] is None:
        return f"not kept  ({score})"
    return f"{result.run_dir / best['checkpoint']}  ({score})"
