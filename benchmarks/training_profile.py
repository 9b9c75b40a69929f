"""Where the time of a training run goes, and whether its memory grows.

    python benchmarks/training_profile.py tiny-pocket --iterations 20            # shares of Python and of operations
    python benchmarks/training_profile.py tiny-pocket --iterations 200 --memory  # memory by iteration

Shares of Python come from cProfile, which slows Python down and operations not at all: they are upper bounds. Shares of
operations come from PyTorch's own profiler in a second run. The warm start is kept short: iterations are looked at.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from side_by_side import machine, table, write_results
from torch.profiler import ProfilerActivity, profile

import seeupo
from seeupo.training.configuration import read_recipe
from seeupo.training.listeners import Unmoved
from seeupo.training.recipe import Recipe
from seeupo.training.train import train

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "scaled_dot_product", "flash_attention")
WAITING = ("acquire", "'get' of '_queue", "time.sleep", "select")


def shortened(recipe: Recipe, iterations: int, tasks: int | None) -> Recipe:
    warm_start = recipe.warm_start and replace(recipe.warm_start, batches=20)
    return replace(
        recipe,
        run=replace(recipe.run, iterations=iterations, checkpoint_every=iterations),
        collect=replace(recipe.collect, tasks=tasks or recipe.collect.tasks),
        evaluation=replace(recipe.evaluation, every=0, tasks=4),
        warm_start=warm_start,
    )


def run(recipe: Recipe, listener: Any = None) -> float:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, folder=Path(folder) / "run", listener=listener)
    return time.perf_counter() - started


def python_shares(recipe: Recipe) -> dict[str, float]:
    """Shares of the run: this package's own Python, other Python, compiled code, and waiting."""
    profiler = cProfile.Profile()
    profiler.enable()
    run(recipe)
    profiler.disable()
    here = str(Path(seeupo.__file__).parent)
    seconds = {"our own Python": 0.0, "other Python": 0.0, "compiled code": 0.0, "waiting": 0.0}
    for (file, _, name), (_, _, own, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        if file == "~":
            kind = "waiting" if any(word in name for word in WAITING) else "compiled code"
        else:
            kind = "our own Python" if file.startswith(here) else "other Python"
        seconds[kind] += own
    total = sum(seconds.values())
    return {kind: spent / total for kind, spent in seconds.items()}


def operation_shares(recipe: Recipe) -> dict[str, float]:
    """Shares of the run that are spent in matrix products and attention, and in other operations, on all threads."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        seconds = run(recipe)
    products = other = 0.0
    for event in profiler.key_averages():
        spent = event.self_cpu_time_total / 1e6
        if any(name in event.key for name in PRODUCTS):
            products += spent
        else:
            other += spent
    # Backward passes run in a thread of their own while this one waits, so that shares add up to about one.
    return {"matrix products and attention": products / seconds, "other operations": other / seconds}


class Memory(Unmoved):
    def __init__(self) -> None:
        self.by_iteration: list[float] = []

    def record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "iteration":
            self.by_iteration.append(psutil.Process().memory_info().rss / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--tasks", type=int, help="groups of an iteration, where all of them are too much to profile")
    parser.add_argument("--memory", action="store_true")
    asked = parser.parse_args()
    recipe = shortened(read_recipe(asked.recipe), asked.iterations, asked.tasks)
    if asked.memory:
        memory = Memory()
        run(recipe, memory)
        quarter = len(memory.by_iteration) // 4
        found = {"mb_at_quarters": [round(memory.by_iteration[n], 1) for n in (quarter, 2 * quarter, 3 * quarter, -1)]}
        print(found)
        write_results(
            f"training_memory_{asked.recipe}", {"machine": machine(), "iterations": asked.iterations, **found}
        )
        return
    shares = {**python_shares(recipe), **operation_shares(recipe)}
    table([("share of wall time", ""), *((name, f"{share:.0%}") for name, share in shares.items())])
    facts = {"machine": machine(), "iterations": asked.iterations, "tasks": recipe.collect.tasks}
    write_results(f"training_profile_{asked.recipe}", {**facts, "shares": shares})


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
