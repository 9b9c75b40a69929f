"""`train` and `resume`: run a recipe from start to exported policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import seeupo
from seeupo.algorithms import ALGORITHMS
from seeupo.config.loader import read_recipe, recipe_to_table, recipe_to_toml
from seeupo.config.schema import Recipe, RunSettings
from seeupo.envs.references import reference_to
from seeupo.envs.trust import NOTHING_ALLOWED, Permissions, named_code
from seeupo.errors import TrainingError, first_line
from seeupo.runs.env_info import collect_env_info
from seeupo.runs.evaluations import Evaluation, compare, panel_of
from seeupo.runs.export import export_policy, model_card
from seeupo.runs.run_directory import POLICY, RECIPE, RunDirectory
from seeupo.training.callbacks import CallbackList, NullCallback, TrainingCallback
from seeupo.training.loop import Loop, Progress
from seeupo.training.setup import Components, build, open_pool
from seeupo.training.trackers import make_trackers
from seeupo.types import EnvFactory
from seeupo.utils.renames import renamed_arguments


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


@renamed_arguments(folder="run_dir", listener="callback")
def train(
    recipe: Recipe | str = "tiny-pocket",
    *,
    run_dir: Path | str | None = None,
    environment: EnvFactory | str | None = None,
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
        environment: Environment that replaces the recipe's: a name, "module:Factory", or a factory object, which is
            trusted and runs in this process.
        trust: Code that the recipe may name, such as "rewards.py:exact"; a recipe that names other code is refused.
        unsandboxed: Run environment workers without a sandbox.
        callback: Observes the run.
        pause: Called wherever the run can be interrupted; raises `Interrupted` to do so.
        on_finish: Called with the complete run directory: `seeupo.train` writes the report there.
    """
    name = recipe if isinstance(recipe, str) else "run"
    recipe = with_threads(read_recipe(recipe) if isinstance(recipe, str) else recipe)
    recipe, factory, permissions = choose_environment(recipe, environment, Permissions(tuple(trust), unsandboxed))
    recipe = with_iterations(recipe, factory, permissions)
    path = Path(run_dir) if run_dir is not None else next_run_dir(Path(name).stem)
    with build(recipe, factory, permissions) as components:
        env_info = {
            **collect_env_info(),
            "trusted_code": [] if factory else named_code(recipe.environment.name, recipe.environment.options),
            "unsandboxed": unsandboxed,
            "panel": panel_of(components.test_tasks),
            "model": recipe.model.name,
            "custom_environment": None if factory is None else recipe.environment.name,
        }
        run = RunDirectory.create(path, recipe_to_toml(recipe), env_info)
        return _run(recipe, components, run, callback, pause, on_finish=on_finish, resuming=False)


@renamed_arguments(folder="run_dir", listener="callback")
def resume(
    run_dir: Path | str,
    *,
    environment: EnvFactory | str | None = None,
    trust: Collection[str] = (),
    unsandboxed: bool = False,
    settings: RunSettings | None = None,
    callback: TrainingCallback | None = None,
    pause: Callable[[], None] = lambda: None,
    on_finish: Callable[[Path], None] = lambda run_dir: None,
) -> TrainingResult:
    """Continue a run from its last checkpoint; `settings` may change when it ends. Other arguments as in `train`."""
    run = RunDirectory.open(Path(run_dir))
    run.check_resumable()
    recipe = read_recipe(str(run.path / RECIPE))
    recipe = recipe if settings is None else replace(recipe, run=settings)
    return resume_run(
        run,
        recipe,
        environment=environment,
        permissions=Permissions(tuple(trust), unsandboxed),
        callback=callback,
        pause=pause,
        on_finish=on_finish,
    )


def resume_run(
    run: RunDirectory,
    recipe: Recipe,
    *,
    environment: EnvFactory | str | None = None,
    permissions: Permissions = NOTHING_ALLOWED,
    callback: TrainingCallback | None = None,
    pause: Callable[[], None] = lambda: None,
    on_finish: Callable[[Path], None] = lambda run_dir: None,
) -> TrainingResult:
    """Continue a run with its recipe, of which only the section [run] may have changed."""
    recipe, factory, permissions = choose_environment(with_threads(recipe), environment, permissions)
    recipe = with_iterations(recipe, factory, permissions)
    with build(recipe, factory, permissions) as components:
        started, now = run.env_info()["panel"], panel_of(components.test_tasks)
        if started != now:
            raise TrainingError(
                f"the held-out tasks of {run.path} are panel {started}; the environment now has panel {now}. "
                "Resume with the environment and options that the run was started with."
            )
        return _run(recipe, components, run, callback, pause, on_finish=on_finish, resuming=True)


def choose_environment(
    recipe: Recipe, environment: EnvFactory | str | None, permissions: Permissions
) -> tuple[Recipe, EnvFactory | None, Permissions]:
    """Return the recipe of the environment that is used, its factory object if there is one, and what it may do.

    A factory object is recorded by its class, so that a run never claims another environment. Its options are unknown.
    """
    if environment is None:
        return recipe, None, permissions
    if isinstance(environment, str):
        factory, name = None, environment
        permissions = replace(permissions, trust=(*permissions.trust, environment))
    else:
        factory, name = environment, reference_to(environment)
    options = recipe.environment.options if name == recipe.environment.name else {}
    return replace(recipe, environment=replace(recipe.environment, name=name, options=options)), factory, permissions


def with_threads(recipe: Recipe) -> Recipe:
    """Return the recipe with a definite number of threads, which the run directory records.

    Sums over several threads differ in the last digits, so bit-identical runs need the same number of threads.
    """
    return replace(recipe, run=replace(recipe.run, threads=recipe.run.threads or torch.get_num_threads()))


def with_iterations(recipe: Recipe, environment: EnvFactory | None, permissions: Permissions) -> Recipe:
    """Return the recipe with a definite number of iterations, which the run directory records."""
    if recipe.run.epochs is None:
        return recipe
    with open_pool(recipe, environment, permissions) as pool:
        train_tasks = len(pool.first_tasks(recipe.environment.train_split, None))
    return replace(recipe, run=recipe.run.resolved(train_tasks, recipe.collect.tasks))


def _run(
    recipe: Recipe,
    components: Components,
    run: RunDirectory,
    callback: TrainingCallback | None,
    pause: Callable[[], None],
    *,
    on_finish: Callable[[Path], None],
    resuming: bool,
) -> TrainingResult:
    with run.lock(), _callbacks(callback or NullCallback(), recipe, run) as callbacks:
        if resuming:
            run.write_recipe(recipe_to_toml(recipe))  # the section [run] may have changed
        loop = Loop(recipe, components, run, callbacks, pause)
        with _explained_errors(run):
            if resuming:
                loop.restore()
            reason = loop.run()
        summary = summarize(recipe, components, run, loop.progress, reason)
        with run.writing(POLICY):
            export_policy(components.engine.export, run.policy_path, model_card(summary, recipe_to_toml(recipe)))
        run.write_summary(summary)
        on_finish(run.path)
    return TrainingResult(run.path, reason, summary)


@contextmanager
def _explained_errors(run: RunDirectory) -> Iterator[None]:
    """Turn PyTorch's numerical and memory errors into user errors that say what to change."""
    try:
        yield
    except FloatingPointError as error:
        raise TrainingError(
            f"{error}; start again with a lower optimizer.learning_rate (or warm_start.learning_rate). "
            f"The last checkpoint is in {run.path}"
        ) from error
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "alloc" in str(error) or "out of memory" in str(error):
            raise TrainingError(
                f"out of memory: {first_line(error)}; start again with lower model.batch_tokens, agent.concurrency or "
                f"collect.tasks, or with model.gradient_checkpointing. The last checkpoint is in {run.path}"
            ) from error
        raise


def summarize(
    recipe: Recipe, components: Components, run: RunDirectory, progress: Progress, reason: str
) -> dict[str, Any]:
    """Return the summary of a run: scores before and after on the same held-out tasks, and the cost."""
    before, after = (Evaluation.read(run.evaluation_path(number)) for number in (0, progress.evaluated))
    names = {algorithm: name for name, algorithm in ALGORITHMS.items()}
    return {
        "reason": reason,
        "model": recipe.model.name,
        "environment": components.pool.name,
        "algorithm": names.get(type(recipe.algorithm), type(recipe.algorithm).__name__),
        "iterations": progress.iteration,
        "optimizer_steps": progress.optimizer_steps,
        "k": recipe.evaluation.k,
        "attempts": recipe.evaluation.attempts,
        "tasks": len(components.test_tasks),
        "panel": after.plan.panel,
        "before": before.summary(),
        "after": after.summary(),
        "difference": compare(before, after),
        "best": best_checkpoint(run, progress),
        "seconds": progress.seconds,
        "tokens": progress.tokens,
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
