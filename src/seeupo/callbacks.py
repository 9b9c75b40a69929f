"""Callbacks: displays, trackers and alarms that observe training, evaluation and rollouts without changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seeupo.types import Trajectory

if TYPE_CHECKING:
    from seeupo.config.schema import Recipe

Record = Mapping[str, Any]


class Callback:
    """Observes a run. Derive from it and override the methods that you need; each of them does nothing.

    A callback that raises an exception is removed with a note, and the run continues without it.
    """

    def on_start(self, recipe: Recipe, run_dir: Path) -> None:
        """Called once, when a training run starts or resumes, with its recipe and run directory."""

    def on_resume(self, records: Sequence[Record]) -> None:
        """Called when training continues from a checkpoint, with all records of metrics.jsonl until then.

        It is called when a run is resumed, and when a run goes back to a checkpoint because its engine was lost.
        """

    def on_phase(self, name: str, total: int | None = None) -> None:
        """Called when a phase starts, with its number of parts if known; the previous one has ended."""

    def on_progress(self, done: int, text: str = "") -> None:
        """Called when `done` parts of the phase are finished."""

    def on_trajectory(self, trajectory: Trajectory) -> None:
        """Called with each trajectory when its episode has ended, in training and in evaluation."""

    def on_record(self, record: Record) -> None:
        """Called when a record is appended to metrics.jsonl; docs/reference/metrics.md explains its keys."""

    def on_checkpoint(self, path: Path) -> None:
        """Called when a checkpoint has been written, with its directory."""

    def on_iteration(self, iteration: int) -> None:
        """Called when an iteration has ended, with its evaluation and checkpoint if they were due."""

    def on_note(self, text: str) -> None:
        """Called with a message for the user, such as an alarm."""

    def on_end(self) -> None:
        """Called when the run has ended, successfully or not."""


class CallbackList(Callback):
    """Forwards each call to several callbacks, and removes one that raises: a tracker must not end a training run."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = list(callbacks)

    def add(self, callbacks: Iterable[Callback]) -> None:
        """Add callbacks, which are called after all others and end before them."""
        self._callbacks += callbacks

    def on_end(self) -> None:
        # In reverse order, so that the display, which is the first, can report failures of the others.
        while self._callbacks:
            callback = self._callbacks.pop()
            try:
                callback.on_end()
            except Exception as error:
                self.on_note(_removal(callback, error))

    def _call(self, method: Callable[[Callback], None]) -> None:
        removals = []
        for callback in tuple(self._callbacks):
            try:
                method(callback)
            except Exception as error:
                self._callbacks.remove(callback)
                with suppress(Exception):
                    callback.on_end()
                removals.append(_removal(callback, error))
        for removal in removals:
            self.on_note(removal)


def _forwarding(name: str) -> Callable[..., None]:
    def forward(self: CallbackList, *args: Any, **kwargs: Any) -> None:
        self._call(lambda callback: getattr(callback, name)(*args, **kwargs))

    return forward


for _name in vars(Callback):
    if _name.startswith("on_") and _name != "on_end":
        setattr(CallbackList, _name, _forwarding(_name))


def _removal(callback: Callback, error: Exception) -> str:
    return f"{type(callback).__name__} is disabled, training continues: {type(error).__name__}: {error}"
