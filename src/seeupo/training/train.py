"""`train` and `resume`: run a recipe from start to exported policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import seeupo
from seeupo.algorithms import ALGORITHMS
from seeupo.config.changes import Change, check_changes, recipe_changes
from seeupo.config.loader import read_recipe, recipe_from_table, recipe_to_table, recipe_to_toml
from seeupo.config.schema import Recipe
from seeupo.config.toml import toml
from seeupo.envs.references import reference_to
from seeupo.envs.registry import EnvSpec
from seeupo.envs.trust import NOTHING_ALLOWED, Permissions, named_code
from seeupo.errors import TrainingError, first_line
from seeupo.evaluation.results import Evaluation, compare, panel_of
from seeupo.protocols import EnvFactory
from seeupo.runs.env_info import collect_env_info
from seeupo.runs.export import export_policy, model_card
from seeupo.runs.run_directory import POLICY, RECIPE, RunDirectory
from seeupo.training.alarms import untrained_warning
from seeupo.training.callbacks import CallbackList, NullCallback, TrainingCallback
from seeupo.training.loop import Loop, Progress
from seeupo.training.setup import Components, build, open_pool
from seeupo.training.trackers import make_trackers


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run: its directory, the reason that it stopped, and its summary."""

    run_dir: Path
    reason: str
    summary: Mapping[str, Any]

    @property
    def policy(self) -> Path:
        """The trained policy, a Hugging Face folder."""
        return self.run_dir / POLICY


def train(
    recipe: Recipe | str,
    *,
    run_dir: Path | str | None = None,
    environment: EnvFactory | EnvSpec | str | None = None,
    trust: Collection[str] = (),
    unsandboxed: bool = False,
    callback: TrainingCallback | None = None,
    pause: Callable[[], None] = lambda: None,
    on_finish: Callable[[Path], None] = lambda run_dir: None,
) -> TrainingResult:
    """Train a policy as a recipe describes.

    Args:
        recipe: A recipe, the name of one, or the path of a TOML file.
        run_dir: New or empty run directory; the next free one in `runs` by default.
        environment: Environment that replaces the recipe's: a name, "module:Factory", an `EnvSpec`, or a factory
            object, which is trusted and runs in this process.
        trust: Code that the recipe may name, such as "rewards.py:exact"; a recipe that names other code is refused.
        unsandboxed: Run environment workers without a sandbox.
        callback: Observes the run.
        pause: Called wherever the run can be interrupted; raises `Interrupted` to do so.
        on_finish: Called with the complete run directory: `seeupo.train` writes the report there.
    """
    name = recipe if isinstance(recipe, str) else "run"
    recipe = with_threads(read_recipe(recipe) if isinstance(recipe, str) else recipe)
    recipe = with_iterations(recipe, environment, Permissions(tuple(trust), unsandboxed))
    recipe, factory, permissions = choose_environment(recipe, environment, Permissions(tuple(trust), unsandboxed))
    path = Path(run_dir) if run_dir is not None else next_run_dir(Path(name).stem)
    with build(recipe, factory, permissions) as components:
        env_info = {
            **collect_env_info(),
            "trusted_code": named_code(
                recipe.environment.name if factory is None else factory, recipe.environment.options
            ),
            "unsandboxed": unsandboxed,
            "panel": panel_of(components.test_tasks),
            "model": recipe.model.name,
            "custom_environment": None if factory is None else recipe.environment.name,
            "recipe": recipe_to_table(recipe),
            "changes": [],
        }
        run = RunDirectory.create(path, recipe_to_toml(recipe), env_info)
        with run.removed_unless_started():
            return _run(recipe, components, run, callback, pause, on_finish=on_finish)


def resume(
    run_dir: Path | str,
    *,
    environment: EnvFactory | EnvSpec | str | None = None,
    trust: Collection[str] = (),
    unsandboxed: bool = False,
    changes: Mapping[str, Any] | None = None,
    accept_changes: bool = False,
    callback: TrainingCallback | None = None,
    pause: Callable[[], None] = lambda: None,
    on_finish: Callable[[Path], None] = lambda run_dir: None,
) -> TrainingResult:
    """Continue a run from its last checkpoint.

    Args:
        changes: New values of recipe keys, such as {"run.iterations": 200, "optimizer.learning_rate": 5e-5}.
        accept_changes: Whether settings other than the run's length may differ from those that the run has used so
            far, in `changes` or because its recipe.toml was edited. They are recorded in its env_info.json.

    Other arguments as in `train`.
    """
    run = RunDirectory.open(Path(run_dir))
    recipe, changed = resumed_recipe(run, as_overrides(changes), accept_changes=accept_changes)
    return resume_run(
        run,
        recipe,
        changed,
        environment=environment,
        permissions=Permissions(tuple(trust), unsandboxed),
        callback=callback,
        pause=pause,
        on_finish=on_finish,
    )


def as_overrides(changes: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return new values of recipe keys as on a command line."""
    return [(key, "none" if value is None else toml(value)) for key, value in (changes or {}).items()]


def resumed_recipe(
    run: RunDirectory, overrides: Sequence[tuple[str, str]], *, accept_changes: bool
) -> tuple[Recipe, list[Change]]:
    """Return the recipe to resume a run with, and its differences from the recipe that the run has used so far.

    Args:
        overrides: Keys and values as on a command line.
        accept_changes: Whether settings other than the run's length may differ.
    """
    run.check_resumable()
    path = str(run.path / RECIPE)
    recipe, recorded = with_threads(read_recipe(path, overrides)), run.recorded_recipe()
    used = with_threads(read_recipe(path) if recorded is None else recipe_from_table(recorded))
    changes = recipe_changes(recipe_to_table(used), recipe_to_table(recipe))
    typed = [key for key, _ in overrides]
    if run.env_info().get("custom_environment") and any(key.startswith("environment.") for key in typed):
        # The run was started with a factory object, which may now be named.
        checked = [each for each in changes if not each.key.startswith(("environment.name", "environment.options"))]
    else:
        checked = changes
    check_changes(checked, typed=typed, accepted=accept_changes)
    if other := sorted(recipe.algorithm.needs ^ used.algorithm.needs):
        changed = "; ".join(each.refusal for each in changes if each.key.startswith("algorithm."))
        raise TrainingError(
            f"{changed}. This cannot change when a run is resumed, because checkpoints depend on the "
            f"{' and '.join(other)}. Undo it, or start a new run"
        )
    return recipe, changes


def resume_run(
    run: RunDirectory,
    recipe: Recipe,
    changes: Sequence[Change],
    *,
    environment: EnvFactory | EnvSpec | str | None = None,
    permissions: Permissions = NOTHING_ALLOWED,
    callback: TrainingCallback | None = None,
    pause: Callable[[], None] = lambda: None,
    on_finish: Callable[[Path], None] = lambda run_dir: None,
) -> TrainingResult:
    """Continue a run with the recipe and the changes that `resumed_recipe` returned."""
    recipe = with_iterations(recipe, environment, permissions)
    before = recipe_to_table(recipe)
    recipe, factory, permissions = choose_environment(recipe, environment, permissions)
    changes = [*changes, *recipe_changes(before, recipe_to_table(recipe))]
    with build(recipe, factory, permissions) as components:
        started, now = run.env_info()["panel"], panel_of(components.test_tasks)
        if started != now:
            raise TrainingError(
                f"the held-out tasks of {run.path} are panel {started}; the environment now has panel {now}. "
                "Resume with the environment and options that the run was started with."
            )
        return _run(recipe, components, run, callback, pause, on_finish=on_finish, changes=changes)


def default_recipe(environment: object) -> str:
    """Return the recipe for an environment; None means the recipe's own."""
    return "tiny-pocket" if environment in (None, "pocket") else "custom"


def choose_environment(
    recipe: Recipe, environment: EnvFactory | EnvSpec | str | None, permissions: Permissions
) -> tuple[Recipe, EnvFactory | EnvSpec | None, Permissions]:
    """Return the recipe of the environment that is used, its factory object or spec if given, and what it may do.

    A factory object is recorded by its class, so that a run never claims another environment.
    """
    if environment is None:
        return recipe, None, permissions
    factory: EnvFactory | EnvSpec | None = None
    if isinstance(environment, str):
        name = environment
        permissions = replace(permissions, trust=(*permissions.trust, environment))
    elif isinstance(environment, EnvSpec):
        name = environment.factory
        factory = replace(environment, name=name)
    else:
        factory, name = environment, reference_to(environment)
    options = recipe.environment.options if name == recipe.environment.name else {}
    return replace(recipe, environment=replace(recipe.environment, name=name, options=options)), factory, permissions


def with_threads(recipe: Recipe) -> Recipe:
    """Return the recipe with a definite number of threads, which the run directory records.

    Sums over several threads differ in the last digits, so bit-identical runs need the same number of threads.
    """
    return replace(recipe, run=replace(recipe.run, threads=recipe.run.threads or torch.get_num_threads()))


def with_iterations(recipe: Recipe, environment: EnvFactory | EnvSpec | str | None, permissions: Permissions) -> Recipe:
    """Return the recipe with a definite number of iterations, which the run directory records."""
    if recipe.run.epochs is None:
        return replace(recipe, run=replace(recipe.run, iterations=recipe.run.total_iterations))
    used, factory, permissions = choose_environment(recipe, environment, permissions)
    with open_pool(used, factory, permissions) as pool:
        train_tasks = len(pool.first_tasks(used.environment.train_split, None))
    return replace(recipe, run=recipe.run.resolved(train_tasks, recipe.collect.tasks))


def _run(
    recipe: Recipe,
    components: Components,
    run: RunDirectory,
    callback: TrainingCallback | None,
    pause: Callable[[], None],
    *,
    on_finish: Callable[[Path], None],
    changes: Sequence[Change] | None = None,
) -> TrainingResult:
    """Run the loop to its end; `changes` are those of a resumed run, None for a new run."""
    with run.lock(), _callbacks(callback or NullCallback(), recipe, run) as callbacks:
        loop = Loop(recipe, components, run, callbacks, pause)
        with _explained_errors(run):
            if changes is not None:
                loop.restore()
                _record_changes(changes, recipe, run, loop.progress.iteration, callbacks)
            reason = loop.run()
        summary = summarize(recipe, components, run, loop.progress, reason)
        with run.writing(POLICY):
            card = partial(model_card, summary, recipe_to_toml(recipe))
            export_policy(components.engine.export, run.policy_path, card)
        run.write_summary(summary)
        on_finish(run.path)
    return TrainingResult(run.path, reason, summary)


def _record_changes(
    changes: Sequence[Change], recipe: Recipe, run: RunDirectory, iteration: int, callback: TrainingCallback
) -> None:
    """Write the changes of a resumed run into its directory, and show them."""
    if changes:
        callback.on_note(f"Changed after iteration {iteration}: {', '.join(map(str, changes))}")
        records = [{"iteration": iteration, **asdict(change)} for change in changes]
        run.record_changes(recipe_to_toml(recipe), recipe_to_table(recipe), records)


@contextmanager
def _explained_errors(run: RunDirectory) -> Iterator[None]:
    """Turn PyTorch's numerical and memory errors into user errors that say what to change."""

    def again(what: str) -> str:
        # A run that has not started is removed, so there is nothing to resume.
        return f"resume {run.path} with {what}, and --accept-changes" if run.started else f"start again with {what}"

    try:
        yield
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


def summarize(
    recipe: Recipe, components: Components, run: RunDirectory, progress: Progress, reason: str
) -> dict[str, Any]:
    """Return the summary of a run: scores before and after on the same held-out tasks, and the cost."""
    after = Evaluation.read(run.evaluation_path(progress.evaluated))
    before = Evaluation.read(path) if (path := run.evaluation_path(0)).exists() else None
    names = {algorithm: name for name, algorithm in ALGORITHMS.items()}
    untrained = untrained_warning(run.metrics())
    return {
        "reason": reason,
        "warnings": [] if untrained is None else [untrained],
        "model": recipe.model.name,
        "environment": components.pool.name,
        "algorithm": names.get(type(recipe.algorithm), type(recipe.algorithm).__name__),
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


def next_run_dir(name: str) -> Path:
    """Return the first of runs/NAME-001, runs/NAME-002, ... that does not exist."""
    number = 1
    while (path := Path("runs") / f"{name}-{number:03d}").exists():
        number += 1
    return path


@contextmanager
def _callbacks(callback: TrainingCallback, recipe: Recipe, run: RunDirectory) -> Iterator[CallbackList]:
    """Combine the callback with the recipe's trackers; warnings of all layers reach them as notes, each once."""
    trackers = make_trackers(recipe.trackers, run.path, name=run.path.name, config=recipe_to_table(recipe))
    callbacks = CallbackList([callback, *trackers])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: callbacks.on_note(str(message))
        try:
            yield callbacks
        finally:
            callbacks.close()
