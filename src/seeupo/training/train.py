"""`train` and `resume`: a run from its recipe to its policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import seeupo
from seeupo.algorithms import ALGORITHMS
from seeupo.models.catalog import first_line
from seeupo.training.configuration import read_recipe, recipe_to_table, recipe_to_toml
from seeupo.training.evaluation import Evaluation, compare, panel_of
from seeupo.training.export import export_policy, model_card
from seeupo.training.facts import facts_of_this_machine
from seeupo.training.failures import TrainingError
from seeupo.training.listeners import Listener, Listeners, Unmoved
from seeupo.training.loop import Loop, Progress
from seeupo.training.parts import Parts, assemble
from seeupo.training.recipe import Recipe, RunSettings
from seeupo.training.run_folder import RECIPE, RunFolder
from seeupo.training.trackers import make_trackers
from seeupo.types import EnvFactory


@dataclass(frozen=True)
class Result:
    """What a run has left: its folder, why it stopped, and its summary."""

    folder: Path
    reason: str
    summary: Mapping[str, Any]

    @property
    def policy(self) -> Path:
        """The trained policy, a Hugging Face folder."""
        return self.folder / "policy"


def train(
    recipe: Recipe | str = "tiny-pocket",
    *,
    folder: Path | str | None = None,
    environment: EnvFactory | None = None,
    listener: Listener | None = None,
    pause: Callable[[], None] = lambda: None,
    finish: Callable[[Path], None] = lambda folder: None,
) -> Result:
    """Train as a recipe says.

    Args:
        recipe: a recipe, the name of one, or a TOML file.
        folder: of the run, new or empty; by default the next free one in `runs`.
        environment: a factory of your own, which takes the place of the recipe's environment; it is trusted and runs
            in this process.
        listener: hears what happens.
        pause: called wherever the run can be left; raises `Interrupted` to leave it.
        finish: called with the run's folder when everything else is in it: `seeupo.train` writes the report then.
    """
    name = recipe if isinstance(recipe, str) else "run"
    recipe = read_recipe(recipe) if isinstance(recipe, str) else recipe
    path = Path(folder) if folder is not None else next_folder(Path(name).stem)
    with assemble(recipe, environment) as parts:
        facts = {
            **facts_of_this_machine(),
            "panel": panel_of(parts.test_tasks),
            "model": recipe.model.name,
            "own_environment": None if environment is None else parts.pool.name,
        }
        run = RunFolder.create(path, recipe_to_toml(recipe), facts)
        return _carry_out(recipe, parts, run, listener or Unmoved(), pause, finish=finish, again=False)


def resume(
    folder: Path | str,
    *,
    environment: EnvFactory | None = None,
    settings: RunSettings | None = None,
    listener: Listener | None = None,
    pause: Callable[[], None] = lambda: None,
    finish: Callable[[Path], None] = lambda folder: None,
) -> Result:
    """Go on with a run from its last checkpoint; `settings` may say anew when it ends."""
    run = RunFolder.open(Path(folder))
    recipe = read_recipe(str(run.path / RECIPE))
    if settings is not None:
        recipe = replace(recipe, run=settings)
    if environment is None and (own := run.facts().get("own_environment")) is not None:
        raise TrainingError(
            f"{run.path} was begun with an environment of somebody's own, {own}; "
            "go on from Python: seeupo.resume(folder, environment=...)"
        )
    with assemble(recipe, environment) as parts:
        begun, now = run.facts()["panel"], panel_of(parts.test_tasks)
        if begun != now:
            raise TrainingError(
                f"{run.path} was begun with the held-out tasks of panel {begun}, and the environment now has those of "
                f"panel {now}; go on with the environment that it was begun with"
            )
        return _carry_out(recipe, parts, run, listener or Unmoved(), pause, finish=finish, again=True)


def _carry_out(
    recipe: Recipe,
    parts: Parts,
    run: RunFolder,
    listener: Listener,
    pause: Callable[[], None],
    *,
    finish: Callable[[Path], None],
    again: bool,
) -> Result:
    with run.lock(), _heard_by(listener, recipe, run) as everyone:
        if again:
            run.write_recipe(recipe_to_toml(recipe))  # it may end elsewhere now
        loop = Loop(recipe, parts, run, everyone, pause)
        with _in_words(run):
            if again:
                loop.go_on()
            reason = loop.run()
        summary = summarize(recipe, parts, run, loop.progress, reason)
        with run.writing("policy"):
            export_policy(parts.policy, run.policy_path, model_card(summary, recipe_to_toml(recipe)))
        run.write_summary(summary)
        finish(run.path)
    return Result(run.path, reason, summary)


@contextmanager
def _in_words(run: RunFolder) -> Iterator[None]:
    """What PyTorch raises when numbers or memory run out, with what to do about it."""
    try:
        yield
    except FloatingPointError as error:
        raise TrainingError(
            f"{error}; begin again with a lower optimizer.learning_rate (or warm_start.learning_rate). "
            f"What was learned until the last checkpoint is in {run.path}"
        ) from error
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "alloc" in str(error) or "out of memory" in str(error):
            raise TrainingError(
                f"memory ran out: {first_line(error)}; lower model.batch_tokens, agent.concurrency or "
                f"collect.tasks, or set model.gradient_checkpointing. Go on with: seeupo train --resume {run.path}"
            ) from error
        raise


def summarize(recipe: Recipe, parts: Parts, run: RunFolder, progress: Progress, reason: str) -> dict[str, Any]:
    """What a run came to: before and after on the same held-out tasks, and what it took."""
    before, after = (Evaluation.read(run.evaluation_path(number)) for number in (0, progress.evaluated))
    names = {algorithm: name for name, algorithm in ALGORITHMS.items()}
    return {
        "reason": reason,
        "model": recipe.model.name,
        "environment": parts.pool.name,
        "algorithm": names.get(type(recipe.algorithm), type(recipe.algorithm).__name__),
        "iterations": progress.iteration,
        "optimizer_steps": progress.optimizer_steps,
        "k": recipe.evaluation.k,
        "samples": recipe.evaluation.samples,
        "tasks": len(parts.test_tasks),
        "panel": after.plan.panel,
        "before": before.summary(),
        "after": after.summary(),
        "difference": compare(before, after),
        "best": {"iteration": progress.best_iteration, "avg": progress.best},
        "seconds": progress.seconds,
        "tokens": progress.tokens,
        "versions": {"seeupo": seeupo.__version__},
    }


def next_folder(name: str) -> Path:
    """The first of runs/NAME-001, runs/NAME-002, ... that is not there."""
    number = 1
    while (path := Path("runs") / f"{name}-{number:03d}").exists():
        number += 1
    return path


@contextmanager
def _heard_by(listener: Listener, recipe: Recipe, run: RunFolder) -> Iterator[Listeners]:
    """The listener and the recipe's trackers. Warnings of all layers reach them, each once."""
    trackers = make_trackers(recipe.trackers, run.path, name=run.path.name, config=recipe_to_table(recipe))
    listeners = Listeners([listener, *trackers])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: listeners.note(str(message))
        try:
            yield listeners
        finally:
            listeners.close()
