"""`train` and `resume`: run a recipe from start to exported policy and report.

This is the only path of a training run; Python and the command line call the same two functions. Torch is imported
after the recipe, its model and the run directory have been checked.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import seeupo
from seeupo.callbacks import Callback, CallbackList
from seeupo.config.changes import Change, recipe_changes
from seeupo.config.loader import default_recipe, read_recipe, recipe_to_table, recipe_to_toml
from seeupo.config.schema import Recipe
from seeupo.envs.registry import EnvSpec
from seeupo.envs.trust import Permissions
from seeupo.errors import EngineLost, RunError, TrainingError, first_line
from seeupo.evaluation.results import Evaluation, compare, panel_of
from seeupo.protocols import EnvFactory
from seeupo.report.write import write_report
from seeupo.runs.alarms import untrained_warning
from seeupo.runs.run_directory import POLICY, REPORT, RunDirectory, check_new_run
from seeupo.training.interrupts import Interrupted, interruptible
from seeupo.training.notes import AlarmNotes, LoggedNotes
from seeupo.training.preparation import as_overrides, check_model, choose_environment, next_run_dir, resumed_recipe
from seeupo.training.trackers import make_trackers
from seeupo.training.train_display import make_display, result_line
from seeupo.utils.output_paths import check_output
from seeupo.utils.terminal import Terminal

if TYPE_CHECKING:
    from seeupo.training.loop import Loop
    from seeupo.training.setup import Components


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run.

    Attributes:
        run_dir: Run directory; docs/reference/run-directory.md describes its files.
        reason: Why training stopped.
        summary: Scores before and after on the same held-out tasks, and the cost, as in summary.json.
    """

    run_dir: Path
    reason: str
    summary: Mapping[str, Any]

    @property
    def policy(self) -> Path:
        """The trained policy, a Hugging Face folder."""
        return self.run_dir / POLICY


def train(
    recipe: Recipe | str | None = None,
    *,
    run_dir: Path | str | None = None,
    environment: EnvFactory | EnvSpec | str | None = None,
    trust: Collection[str] = (),
    unsandboxed: bool = False,
    callback: Callback | None = None,
    progress: bool | Callback = True,
) -> TrainingResult:
    """Train a policy as a recipe describes, with a progress display, and write the run's report.

    Ctrl-C finishes the current step, saves a checkpoint and raises KeyboardInterrupt; a second one stops at once.
    `seeupo.resume` continues the run. A run that made no optimizer step causes a warning.

    Args:
        recipe: A recipe, the name of one, or the path of a TOML file. Default: `tiny-pocket`, or `custom` if another
            environment is given.
        run_dir: New or empty run directory; the next free one in `runs` by default.
        environment: Environment that replaces the recipe's: a name, "module:Factory", an `EnvSpec`, or a factory
            object, which is trusted and runs in this process.
        trust: Code that the recipe may name, such as "rewards.py:exact" or "mine:MyAlgorithm", and the address of its
            Ray cluster; a recipe that names others is refused, because it may come from a stranger's file.
        unsandboxed: Run environment workers without a sandbox.
        callback: Observes the run, besides the display.
        progress: Show progress on standard error: a live display on a terminal or in a notebook, plain lines elsewhere.
            Without it, alarms and other notes are warnings of the logger "seeupo". A callback replaces the display.

    Returns:
        The run directory, the reason that training stopped, and the summary.
    """
    if recipe is None:
        recipe = default_recipe(environment)
    path = check_output(next_run_dir(recipe) if run_dir is None else Path(run_dir), folder=True)
    recipe = read_recipe(recipe) if isinstance(recipe, str) else recipe
    recipe, factory, permissions = choose_environment(
        recipe.with_code(trust), environment, Permissions(tuple(trust), unsandboxed)
    )
    check_new_run(path)
    check_model(recipe)
    from seeupo.runs.env_info import collect_env_info
    from seeupo.training.setup import build

    with _observed(callback, progress=progress) as callbacks, build(recipe, factory, permissions) as components:
        recipe = components.recipe
        env_info = {
            **collect_env_info(),
            "trusted_code": recipe.code if factory is None else recipe.in_process_code,
            "unsandboxed": unsandboxed,
            "panel": panel_of(components.test_tasks),
            "model": recipe.model.name,
            "custom_environment": None if factory is None else recipe.environment.name,
            "recipe": recipe_to_table(recipe),
            "changes": [],
        }
        run = RunDirectory.create(path, recipe_to_toml(recipe), env_info)
        with run.removed_unless_started():
            result = _run(components, run, callbacks)
    return _announced(result, progress=progress)


def resume(
    run_dir: Path | str,
    *,
    environment: EnvFactory | EnvSpec | str | None = None,
    trust: Collection[str] = (),
    unsandboxed: bool = False,
    changes: Mapping[str, Any] | None = None,
    accept_changes: bool = False,
    callback: Callback | None = None,
    progress: bool | Callback = True,
) -> TrainingResult:
    """Continue a run from its last checkpoint.

    Args:
        run_dir: Run directory.
        environment, trust, unsandboxed, callback, progress: As in `train`.
        changes: New values of recipe keys, such as {"run.iterations": 200, "optimizer.learning_rate": 5e-5}.
        accept_changes: Whether settings other than the run's length may differ from those that the run has used so
            far, in `changes` or because its recipe.toml was edited, and whether records may be missing from its
            metrics.jsonl. Both are recorded in its env_info.json.

    Returns:
        The result of the whole run, as from `train`.
    """
    run = RunDirectory.open(Path(run_dir))
    changed, differences = resumed_recipe(run, as_overrides(changes), accept_changes=accept_changes, trust=trust)
    recipe, factory, permissions = choose_environment(changed, environment, Permissions(tuple(trust), unsandboxed))
    differences += recipe_changes(recipe_to_table(changed), recipe_to_table(recipe))
    with run.lock():
        pass  # a run in use is an error now
    check_model(recipe)
    from seeupo.training.setup import build

    with _observed(callback, progress=progress) as callbacks, build(recipe, factory, permissions) as components:
        started, now = run.env_info()["panel"], panel_of(components.test_tasks)
        if started != now:
            raise TrainingError(
                f"the held-out tasks of {run.path} are panel {started}; the environment now has panel {now}. "
                "Resume with the environment and options that the run was started with."
            )
        result = _run(components, run, callbacks, changes=differences, accept_changes=accept_changes)
    return _announced(result, progress=progress)


def _run(
    components: Components,
    run: RunDirectory,
    callbacks: CallbackList,
    *,
    changes: Sequence[Change] | None = None,
    accept_changes: bool = False,
) -> TrainingResult:
    """Run the loop to its end; `changes` are those of a resumed run, None for a new run."""
    from seeupo.runs.export import export_policy, model_card
    from seeupo.training.loop import Loop

    recipe = components.recipe
    with run.lock(), _warnings_as_notes(callbacks):
        run.clear_stopped()
        callbacks.add(make_trackers(recipe, run.path, callbacks.on_note))
        callbacks.on_start(recipe, run.path)
        loop = Loop(components, run, callbacks)
        try:
            with _explained_errors(run):
                if changes is not None:
                    losses = loop.restore(accept_lost_records=accept_changes)
                    _record_changes([*changes, *losses], loop)
                reason = _run_loop(loop)
        except Interrupted:
            run.write_stopped(loop.progress.iteration)
            _write_report(run)
            raise
        summary = summarize(loop, reason)
        with run.writing(POLICY):
            card = partial(model_card, summary, recipe_to_toml(recipe))
            export_policy(components.engine.export, run.policy_path, card)
        run.write_summary(summary)
        _write_report(run)
    return TrainingResult(run.path, reason, summary)


def _write_report(run: RunDirectory) -> None:
    try:
        write_report([run.path], run.path / REPORT)
    except RunError as error:
        warnings.warn(f"the report was not written: {error}", stacklevel=2)  # the run is complete without it


def summarize(loop: Loop, reason: str) -> dict[str, Any]:
    """Return the contents of summary.json; docs/reference/run-directory.md explains them."""
    recipe = loop.recipe
    run = loop.run_dir
    progress = loop.progress
    after = Evaluation.read(run.evaluation_path(progress.evaluated))
    before = Evaluation.read(path) if (path := run.evaluation_path(0)).exists() else None
    untrained = untrained_warning(run.metrics())
    best = run.checkpoints().best_iteration()
    best_is_kept = best is not None and best == progress.best_iteration  # else a damaged disk lost it
    return {
        "reason": reason,
        "warnings": [] if untrained is None else [untrained],
        "model": recipe.model.name,
        "environment": loop.components.pool.name,
        "algorithm": recipe.algorithm.name,
        "iterations": progress.iteration,
        "optimizer_steps": progress.optimizer_steps,
        "k": recipe.evaluation.k,
        "attempts": recipe.evaluation.attempts,
        "tasks": len(loop.components.test_tasks),
        "panel": after.plan.panel,
        "before": None if before is None else before.summary(),
        "after": after.summary(),
        "difference": None if before is None else compare(before, after),
        "best": {
            "iteration": progress.best_iteration,
            "avg": progress.best,
            "checkpoint": f"checkpoints/{best:05d}" if best_is_kept else None,
        },
        "seconds": progress.seconds,
        "tokens": progress.tokens,
        "changes": run.env_info().get("changes", []),
        "versions": {"seeupo": seeupo.__version__},
    }


def _run_loop(loop: Loop) -> str:
    """Run the loop; if an engine loses its processes, continue from the last checkpoint as if it had been resumed."""
    lost: EngineLost | None = None
    while True:
        try:
            if lost is not None:
                loop.restore()
            with _existing_objects_frozen():
                return loop.run()
        except EngineLost as error:
            lost = error
            if loop.checkpoints.latest() is None:
                raise
            loop.callback.on_note(f"{lost}; training continues from the last checkpoint")


@contextmanager
def _existing_objects_frozen() -> Iterator[None]:
    """Exclude all existing objects from garbage collections in this block; they took a fifth of a tiny run."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _record_changes(changes: Sequence[Change], loop: Loop) -> None:
    """Write the changes of a resumed run into its directory, and show them."""
    if changes:
        iteration = loop.progress.iteration
        loop.callback.on_note(f"Changed after iteration {iteration}: {', '.join(map(str, changes))}")
        records = [{"iteration": iteration, **asdict(change)} for change in changes]
        loop.run_dir.record_changes(recipe_to_toml(loop.recipe), recipe_to_table(loop.recipe), records)


@contextmanager
def _explained_errors(run: RunDirectory) -> Iterator[None]:
    """Say how to continue after an interruption, and what to change after numerical and memory errors of PyTorch."""

    def again(change: str) -> str:
        # A run that has not started is removed, so there is nothing to resume.
        return f"resume {run.path} with {change}, and --accept-changes" if run.started else f"start again with {change}"

    try:
        yield
    except Interrupted:
        arguments = ", environment=..." if run.env_info().get("custom_environment") else ""
        message = f"stopped and saved; continue with seeupo.resume({str(run.path)!r}{arguments})"
        raise Interrupted(message) from None
    except FloatingPointError as error:
        raise TrainingError(
            f"{error}; {again('a lower optimizer.learning_rate')}. In a warm start, start again with a lower "
            "warm_start.learning_rate"
        ) from error
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "alloc" in str(error) or "out of memory" in str(error):
            memory = (
                "lower model.batch_tokens, agent.concurrency or collect.tasks, or with model.gradient_checkpointing"
            )
            raise TrainingError(f"out of memory: {first_line(error)}; {again(memory)}") from error
        raise


@contextmanager
def _observed(callback: Callback | None, *, progress: bool | Callback) -> Iterator[CallbackList]:
    """Yield the callbacks of a run: display, alarms, the user's callback, and Ctrl-C."""
    if isinstance(progress, bool):
        progress = make_display(Terminal(stderr=True)) if progress else LoggedNotes()
    callbacks = CallbackList([progress])
    with interruptible(callbacks.on_note) as interruption:
        callbacks.add([AlarmNotes(callbacks.on_note), *([] if callback is None else [callback]), interruption])
        try:
            yield callbacks
        finally:
            callbacks.on_end()


@contextmanager
def _warnings_as_notes(callback: Callback) -> Iterator[None]:
    """Report warnings of all layers as notes, each once; end the callbacks before the run is unlocked."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: callback.on_note(str(message))
        try:
            yield
        finally:
            callback.on_end()


def _announced(result: TrainingResult, *, progress: bool | Callback) -> TrainingResult:
    """Show how a run ended, warn if it trained nothing, and return the result; another display does this itself."""
    if isinstance(progress, Callback):
        return result
    if progress:
        console = Terminal(stderr=True)
        console.print(result_line(result.summary), soft_wrap=True)
        if (page := result.run_dir / REPORT).exists():
            console.print(f"report: {page}", soft_wrap=True)
    for text in result.summary["warnings"]:
        warnings.warn(text, stacklevel=3)  # at the line that called `seeupo.train`
    return result
