"""Profile a training run: time by kind of work, and memory by iteration.

    python benchmarks/training_profile.py tiny-pocket python                       # shares of Python, of a whole run
    python benchmarks/training_profile.py smollm2-pocket operations --iterations 1 # share of matrix products
    python benchmarks/training_profile.py tiny-pocket memory --iterations 200      # memory by iteration

Both profilers slow down everything except matrix products: the shares of Python are upper bounds, those of products
lower bounds. With `--iterations` the warm start and the evaluations are shortened.
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
from seeupo.callbacks import Callback
from seeupo.config.loader import read_recipe
from seeupo.config.schema import Recipe
from seeupo.training.run import train

PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward"}  # fmt: skip
WAITING = ("acquire", "'get' of '_queue", "time.sleep", "select")


def shortened(recipe: Recipe, iterations: int | None) -> Recipe:
    if iterations is None:
        return recipe
    return replace(
        recipe,
        run=replace(recipe.run, iterations=iterations, checkpoint_every=iterations),
        evaluation=replace(recipe.evaluation, every=0, tasks=4),
        warm_start=recipe.warm_start and replace(recipe.warm_start, batches=20),
    )


def run(recipe: Recipe, callback: Callback | None = None) -> float:
    """Train in a temporary run directory and return the seconds."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        train(recipe, run_dir=Path(directory) / "run", callback=callback)
    return time.perf_counter() - started


def python_shares(recipe: Recipe) -> dict[str, float]:
    """Return the shares of this package's Python, other Python, compiled code, and waiting."""
    profiler = cProfile.Profile()
    profiler.enable()
    run(recipe)
    profiler.disable()
    here = str(Path(seeupo.__file__).parent)
    seconds = {"our own Python": 0.0, "other Python": 0.0, "compiled code": 0.0, "waiting": 0.0}
    for (file, _, name), (_, _, spent, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        if file == "~":
            kind = "waiting" if any(word in name for word in WAITING) else "compiled code"
        else:
            kind = "our own Python" if file.startswith(here) else "other Python"
        seconds[kind] += spent
    total = sum(seconds.values())
    return {kind: spent / total for kind, spent in seconds.items()}


class Operations(Callback):
    """Profile all iterations, from the start of the first to the last record."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self.profiler = profile(activities=[ProfilerActivity.CPU])
        self.seconds = 0.0
        self._started: float | None = None

    def on_phase(self, name: str, total: int | None = None) -> None:
        if name == "collecting" and self._started is None:
            self.profiler.start()
            self._started = time.perf_counter()

    def on_record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "iteration" and record["iteration"] == self.iterations and self._started is not None:
            self.seconds = time.perf_counter() - self._started
            self.profiler.stop()

    def share(self) -> float:
        """Return the share of the time spent in matrix products and attention."""
        events = self.profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
        return sum(event.duration_ns() for event in events if event.name() in PRODUCTS) / 1e9 / self.seconds


class Memory(Callback):
    """Record the resident memory after each iteration, in MiB."""

    def __init__(self) -> None:
        self.by_iteration: list[float] = []

    def on_record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "iteration":
            self.by_iteration.append(psutil.Process().memory_info().rss / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("what", choices=["python", "operations", "memory"])
    parser.add_argument("--iterations", type=int, help="Number of iterations.  [default: the whole recipe]")
    options = parser.parse_args()
    recipe = shortened(read_recipe(options.recipe), options.iterations)
    iterations = recipe.run.iterations
    figures: dict[str, Any]
    if options.what == "python":
        figures = {"shares": python_shares(recipe)}
        table([("share of the run", ""), *((name, f"{share:.0%}") for name, share in figures["shares"].items())])
    elif options.what == "operations":
        operations = Operations(iterations)
        run(recipe, operations)
        figures = {"matrix_products_and_attention": operations.share()}
        print(f"matrix products and attention: {operations.share():.0%} of {operations.seconds:.0f} s")
    else:
        memory = Memory()
        run(recipe, memory)
        tenths = [len(memory.by_iteration) * n // 10 - 1 for n in range(1, 11)]
        figures = {"mb_at_tenths": [round(memory.by_iteration[n]) for n in tenths]}
        print(f"MB after each tenth of {iterations} iterations: {figures['mb_at_tenths']}")
    name = f"training_{options.what}_{options.recipe}"
    write_results(name, {"machine": machine(), "iterations": iterations, **figures})


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
