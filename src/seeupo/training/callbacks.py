"""Callbacks: displays and trackers that observe a training run without changing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol


class TrainingCallback(Protocol):
    """Observes a run, in the order in which things happen."""

    def on_phase(self, name: str, total: int | None = None) -> None:
        """A phase starts, of `total` parts if known; the previous one has ended."""

    def on_progress(self, done: int, text: str = "") -> None:
        """`done` parts of the phase are finished."""

    def on_record(self, record: Mapping[str, Any]) -> None:
        """A record is appended to metrics.jsonl; docs/metrics.md explains it.

        When a run is resumed, its earlier records are replayed before the first phase.
        """

    def on_note(self, text: str) -> None:
        """Something that the user should know, such as an alarm."""

    def close(self) -> None:
        """The run has ended, successfully or not."""


class NullCallback:
    """Ignores everything; a base class for callbacks that override what they need."""

    def on_phase(self, name: str, total: int | None = None) -> None: ...

    def on_progress(self, done: int, text: str = "") -> None: ...

    def on_record(self, record: Mapping[str, Any]) -> None: ...

    def on_note(self, text: str) -> None: ...

    def close(self) -> None: ...


class CallbackList:
    """Forwards everything to several callbacks.

    One that raises is removed and the others are told: a tracker with a full disk must not end a training run.
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
