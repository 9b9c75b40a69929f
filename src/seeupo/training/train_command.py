"""What `seeupo train` does: read what is asked for, show what happens, and say what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seeupo.training.configuration import read_recipe, recipe_to_toml
from seeupo.training.display import make_display
from seeupo.training.evaluation import shown
from seeupo.training.failures import TrainingError
from seeupo.training.interrupts import interruptible
from seeupo.training.loop import Interrupted
from seeupo.training.parts import assemble
from seeupo.training.recipe import Recipe
from seeupo.training.run_folder import RECIPE, REPORT, RunFolder
from seeupo.training.train import Result, next_folder, resume, train

DEFAULT = "tiny-pocket"
SECTIONS = tuple(each.name for each in fields(Recipe))
STOPPED = 130
"""Exit code after Ctrl-C."""


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """--section.key value, or --section.key=value, in pairs."""
    pairs, rest = [], list(arguments)
    while rest:
        key, equals, value = rest.pop(0).partition("=")
        if not key.startswith("--") or not ("." in key or key[2:] in SECTIONS):
            raise TrainingError(
                f"{key!r} is no option; keys of a recipe are given like --run.seed 1, see docs/configuration.md"
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
    again: Path | None,
    finish: Callable[[Path], None],
) -> int:
    """Train or go on, with a display, and `finish` with the run's folder; the exit code."""
    pairs = parse_overrides(overrides)
    if again is not None:
        path = RunFolder.open(again).path
        if recipe_name is not None or out is not None:
            raise TrainingError("--resume goes on with the run's own recipe in its own folder; leave the others out")
        if other := [key for key, _ in pairs if not key.startswith("run.")]:
            raise TrainingError(f"--{other[0]}: a run goes on as it was begun; only keys of [run] can change")
        recipe = read_recipe(str(path / RECIPE), pairs)
    else:
        recipe = read_recipe(recipe_name or DEFAULT, pairs)
        path = out or next_folder(Path(recipe_name or DEFAULT).stem)
    console = Console(stderr=True)
    display = make_display(
        console, title=f"{recipe.model.name} on {recipe.environment.name}: {path}", iterations=recipe.run.iterations
    )
    try:
        with interruptible(display.note) as pause:
            if again is not None:
                result = resume(path, settings=recipe.run, listener=display, pause=pause, finish=finish)
            else:
                result = train(recipe, folder=path, listener=display, pause=pause, finish=finish)
    except Interrupted:
        console.print(f"Stopped and saved. Go on with: seeupo train --resume {path}", highlight=False)
        return STOPPED
    except KeyboardInterrupt:
        console.print(
            f"Stopped at once. Go on from the last checkpoint with: seeupo train --resume {path}", highlight=False
        )
        return STOPPED
    finally:
        display.close()
    show_result(result, recipe)
    return 0


def show_result(result: Result, recipe: Recipe) -> None:
    """What improved, where everything is, and what to do next."""
    summary, console = result.summary, Console(highlight=False)
    k = summary["k"]
    table = Table(box=None, pad_edge=False)
    for column in (f"{summary['tasks']} held-out tasks", "before", "after", "difference"):
        table.add_column(column)
    for name in (f"avg@{k}", f"pass@{k}"):
        found = {when: summary[when][name] for when in ("before", "after", "difference")}
        cells = (shown(estimate, signed=when == "difference", digits=2) for when, estimate in found.items())
        table.add_row(name, *map(escape, cells))
    minutes = sum(summary["seconds"].values()) / 60
    console.print(f"\n{verdict(summary)} ({result.reason}; {minutes:.1f} minutes)")
    console.print(table)
    if (result.folder / "policy").is_dir():
        console.print(f"policy    {result.folder / 'policy'}  (loads in transformers and vLLM)")
    if (page := result.folder / REPORT).exists():
        console.print(f"report    {page}  (open it in a browser)")
    console.print(f"run       {result.folder}  (summary.json, metrics.jsonl, trajectories; see docs/run-folder.md)")
    console.print(f"evaluate  seeupo eval {result.folder}")
    console.print(f"go on     seeupo train --resume {result.folder} --run.iterations {2 * recipe.run.iterations}")


def verdict(summary: Mapping[str, Any]) -> str:
    """One sentence: did it work?"""
    k = summary["k"]
    gain, before, after = summary["difference"][f"avg@{k}"], summary["before"][f"avg@{k}"], summary["after"][f"avg@{k}"]
    change = f"avg@{k} on held-out tasks went from {before['value']:.2f} to {after['value']:.2f}"
    if gain["low"] > 0:
        return f"It learned: {change}"
    if gain["high"] < 0:
        return f"It got worse: {change}"
    return f"No clear change: {change}, which may be chance"


def show_plan(recipe_name: str | None, overrides: Sequence[str]) -> None:
    """Resolve everything, load what is cheap, say what would be done, and train nothing."""
    recipe = read_recipe(recipe_name or DEFAULT, parse_overrides(overrides))
    console = Console(highlight=False)
    console.print(recipe_to_toml(recipe), markup=False)
    with assemble(recipe) as parts:
        parameters = list(parts.policy.model.parameters())
        weights, trained = sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)
        lines = {
            "model": f"{recipe.model.name}: {weights:,} weights, {trained:,} trained, {parts.policy.packing} packing",
            "environment": f"{parts.pool.name}: {len(parts.train_tasks)} tasks, {len(parts.test_tasks)} more held out",
        }
    if (warm := recipe.warm_start) is not None:
        lines["warm start"] = f"{warm.batches} batches of {warm.batch_episodes} demonstrations"
    tasks, group_size = recipe.collect.tasks, recipe.collect.group_size
    lines["training"] = f"{recipe.run.iterations} iterations of {tasks} tasks x {group_size} attempts"
    for name, text in lines.items():
        console.print(f"{name:<12} {text}", markup=False)
    console.print("Nothing was trained.")
