"""The public `seeupo.train` and `seeupo.resume`: a run with a progress display and a report at the end.

They are what `seeupo train` is on the command line, without its options and its texts for a shell. The display is in
`display`, below this module, because both show it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seeupo.config.loader import read_recipe
from seeupo.config.schema import Recipe
from seeupo.display.terminal import Terminal
from seeupo.display.train_display import make_display, result_line
from seeupo.envs.registry import EnvSpec
from seeupo.envs.trust import NOTHING_ALLOWED, Permissions
from seeupo.errors import ReportError, RunError
from seeupo.protocols import EnvFactory
from seeupo.report.write import write_report
from seeupo.runs.run_directory import REPORT, RunDirectory
from seeupo.training import train as training
from seeupo.training.callbacks import CallbackList, NullCallback, TrainingCallback
from seeupo.training.interrupts import interruptible
from seeupo.training.loop import Interrupted
from seeupo.training.train import TrainingResult, next_run_dir
from seeupo.utils.renames import renamed_arguments
from seeupo.utils.text import one_line

LOGGER = logging.getLogger("seeupo")


@renamed_arguments(folder="run_dir", listener="callback")
def train(
    recipe: Recipe | str | None = None,
    *,
    run_dir: Path | str | None = None,
    environment: EnvFactory | EnvSpec | str | None = None,
    trust: Collection[str] = (),
    unsandboxed: bool = False,
    callback: TrainingCallback | None = None,
    progress: bool = True,
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
        trust: Code that the recipe may name, such as "rewards.py:exact"; a recipe that names other code is refused.
        unsandboxed: Run environment workers without a sandbox.
        callback: Observes the run, besides the display.
        progress: Show progress on standard error: a live display on a terminal or in a notebook, plain lines elsewhere.
            Without it, alarms and other notes are warnings of the logger "seeupo".
    """
    if recipe is None:
        recipe = training.default_recipe(environment)
    name = recipe if isinstance(recipe, str) else "run"
    recipe = read_recipe(recipe) if isinstance(recipe, str) else recipe
    recipe = training.with_iterations(recipe, environment, Permissions(tuple(trust), unsandboxed))
    path = Path(run_dir) if run_dir is not None else next_run_dir(Path(name).stem)
    with _observed(recipe, environment, path, callback, progress=progress) as (callbacks, pause):
        result = training.train(
            recipe,
            run_dir=path,
            environment=environment,
            trust=trust,
            unsandboxed=unsandboxed,
            callback=callbacks,
            pause=pause,
            on_finish=write_run_report,
        )
    return _announced(result, progress=progress)


@renamed_arguments(folder="run_dir", listener="callback")
def resume(
    run_dir: Path | str,
    *,
    environment: EnvFactory | EnvSpec | str | None = None,
    trust: Collection[str] = (),
    unsandboxed: bool = False,
    changes: Mapping[str, Any] | None = None,
    accept_changes: bool = False,
    callback: TrainingCallback | None = None,
    progress: bool = True,
) -> TrainingResult:
    """Continue a run from its last checkpoint.

    Args:
        run_dir: Run directory.
        environment, trust, unsandboxed, callback, progress: As in `train`.
        changes: New values of recipe keys, such as {"run.iterations": 200, "optimizer.learning_rate": 5e-5}.
        accept_changes: Whether settings other than the run's length may differ from those that the run has used so
            far, in `changes` or because its recipe.toml was edited. They are recorded in its env_info.json.
    """
    run = RunDirectory.open(Path(run_dir))
    recipe, changed = training.resumed_recipe(run, training.as_overrides(changes), accept_changes=accept_changes)
    recipe = training.with_iterations(recipe, environment, Permissions(tuple(trust), unsandboxed))
    with _observed(recipe, environment, run.path, callback, progress=progress) as (callbacks, pause):
        result = training.resume_run(
            run,
            recipe,
            changed,
            environment=environment,
            permissions=Permissions(tuple(trust), unsandboxed),
            callback=callbacks,
            pause=pause,
            on_finish=write_run_report,
        )
    return _announced(result, progress=progress)


def write_run_report(run_dir: Path) -> None:
    """Write a run's report into its directory. A failure is only a warning, because the run is complete without it."""
    try:
        write_report([run_dir], run_dir / REPORT)
    except (ReportError, RunError) as error:
        warnings.warn(f"the report was not written: {error}", stacklevel=2)


class LoggedNotes(NullCallback):
    """Logs the notes of a run that has no display."""

    def on_note(self, text: str) -> None:
        LOGGER.warning("%s", one_line(text))


@contextmanager
def _observed(
    recipe: Recipe,
    environment: EnvFactory | EnvSpec | str | None,
    path: Path,
    callback: TrainingCallback | None,
    *,
    progress: bool,
) -> Iterator[tuple[TrainingCallback, Callable[[], None]]]:
    """Yield the callbacks of a run, its display included, and the function that interrupts it after Ctrl-C."""
    used, _, _ = training.choose_environment(recipe, environment, NOTHING_ALLOWED)
    title = f"{recipe.model.name} on {used.environment.name}: {path}"
    display: TrainingCallback = LoggedNotes()
    if progress:
        display = make_display(Terminal(stderr=True), title=title, iterations=recipe.run.total_iterations)
    try:
        with interruptible(display.on_note) as pause:
            yield CallbackList([display, *([] if callback is None else [callback])]), pause
    except Interrupted:
        arguments = "" if environment is None else ", environment=..."
        raise KeyboardInterrupt(f"stopped and saved; continue with seeupo.resume({str(path)!r}{arguments})") from None
    finally:
        display.close()


def _announced(result: TrainingResult, *, progress: bool) -> TrainingResult:
    """Show how a run ended, warn if it trained nothing, and return the result."""
    if progress:
        console = Terminal(stderr=True)
        console.print(result_line(result.summary), soft_wrap=True)
        if (page := result.run_dir / REPORT).exists():
            console.print(f"report: {page}", soft_wrap=True)
    for text in result.summary["warnings"]:
        warnings.warn(text, stacklevel=4)  # at the line that called `seeupo.train`
    return result
