"""Callbacks: displays and trackers that observe a training run without changing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol


class TrainingCallback(Protocol):
    """Observes a run."""

    def on_phase(self, name: str, total: int | None = None) -> None:
        """Called when a phase starts, with its number of parts if known; the previous one has ended."""

    def on_progress(self, done: int, text: str = "") -> None:
        """Called when `done` parts of the phase are finished."""

    def on_record(self, record: Mapping[str, Any]) -> None:
        """Called when a record is appended to metrics.jsonl; docs/reference/metrics.md explains it.

        When a run is resumed, its earlier records are replayed before the first phase.
        """

    def on_note(self, text: str) -> None:
        """Called with a message for the user, such as an alarm."""

    def close(self) -> None:
        """Called when the run has ended, successfully or not."""


class NullCallback:
    """Does nothing; a base class for callbacks that override only some methods."""

    def on_phase(self, name: str, total: int | None = None) -> None: ...

    def on_progress(self, done: int, text: str = "") -> None: ...

    def on_record(self, record: Mapping[str, Any]) -> None: ...

    def on_note(self, text: str) -> None: ...

    def close(self) -> None: ...


class CallbackList:
    """Forwards each call to several callbacks.

    A callback that raises is removed, with a note to the others: a failing tracker must not end a training run.
    """

    def __init__(self, callbacks: Iterable[TrainingCallback]) -> None:
        self._callbacks = list(callbacks)

    def on_phase(self, name: str, total: int | None = None) -> None:
        self._call(lambda callback: callback.on_phase(name, total))

    def on_progress(self, done: int, text: str = "") -> None:
        self._call(lambda callback: callback.on_progress(done, text))

    def on_record(self, record: Mapping[str, Any]) -> None:
        self._call(lambda callback: callback.on_record(record))

    def on_note(self, text: str) -> None:
        self._call(lambda callback: callback.on_note(text))

    def close(self) -> None:
        # Trackers come after the display and close first, so that the display can still report their failure.
        while self._callbacks:
            callback = self._callbacks.pop()
            try:
                callback.close()
            except Exception as error:
                self.on_note(_removal(callback, error))

    def _call(self, method: Callable[[TrainingCallback], None]) -> None:
        removals = []
        for callback in tuple(self._callbacks):
            try:
                method(callback)
            except Exception as error:
                self._callbacks.remove(callback)
                with suppress(Exception):
                    callback.close()
                removals.append(_removal(callback, error))
        for removal in removals:
            self.on_note(removal)


def _removal(callback: TrainingCallback, error: Exception) -> str:
    return f"{type(callback).__name__} is disabled, training continues: {type(error).__name__}: {error}"
