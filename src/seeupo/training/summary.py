"""The summary of a run: scores before and after on the same held-out tasks, and the cost."""

from __future__ import annotations

from typing import Any

import seeupo
from seeupo.config.schema import Recipe
from seeupo.evaluation.results import Evaluation, compare
from seeupo.runs.alarms import untrained_warning
from seeupo.runs.run_directory import RunDirectory
from seeupo.training.progress import Progress
from seeupo.training.setup import Components


def summarize(
    recipe: Recipe, components: Components, run: RunDirectory, progress: Progress, reason: str
) -> dict[str, Any]:
    """Return the contents of summary.json; docs/reference/run-directory.md explains them."""
    after = Evaluation.read(run.evaluation_path(progress.evaluated))
    before = Evaluation.read(path) if (path := run.evaluation_path(0)).exists() else None
    untrained = untrained_warning(run.metrics())
    return {
        "reason": reason,
        "warnings": [] if untrained is None else [untrained],
        "model": recipe.model.name,
        "environment": components.pool.name,
        "algorithm": recipe.algorithm.name,
        "iterations": progress.iteration,
        "optimizer_steps": progress.optimizer_steps,
        "k": recipe.evaluation.k,
        "attempts": recipe.evaluation.attempts,
        "tasks": len(components.test_tasks),
        "panel": after.plan.panel,
        "before": None if before is None else before.summary(),
        "after": after.summary(),
        "difference": None if before is None else compare(before, after),
        "best": best_checkpoint(run, progress),
        "seconds": progress.seconds,
        "tokens": progress.tokens,
        "changes": run.env_info().get("changes", []),
        "versions": {"seeupo": seeupo.__version__},
    }


def best_checkpoint(run: RunDirectory, progress: Progress) -> dict[str, Any]:
    """Return the best evaluation, and the checkpoint of its policy: null if it was lost to a damaged disk."""
    best = run.checkpoints().best_iteration()
    path = f"checkpoints/{best:05d}" if best is not None and best == progress.best_iteration else None
    return {"iteration": progress.best_iteration, "avg": progress.best, "checkpoint": path}
