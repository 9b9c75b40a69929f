"""Those who hear what happens in a training run: displays and trackers. They change nothing in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol


class Listener(Protocol):
    """Hears what happens, in the order in which it happens."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase begins, of `total` parts if that is known; the one before has ended."""

    def progress(self, done: int, text: str = "") -> None:
        """So many parts of the phase are done."""

    def record(self, record: Mapping[str, Any]) -> None:
        """What is appended to metrics.jsonl; docs/metrics.md explains it.

        A run that goes on has its earlier records heard again, before the first phase begins.
        """

    def note(self, text: str) -> None:
        """Something that a person should know."""

    def close(self) -> None:
        """The run has ended, well or not. Nothing follows."""


class Unmoved:
    """A listener to whom nothing matters; others are made from it and hear what matters to them."""

    def phase(self, name: str, total: int | None = None) -> None: ...

    def progress(self, done: int, text: str = "") -> None: ...

    def record(self, record: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Listeners:
    """Passes everything on to several listeners.

    One that raises is dropped and the others are told: a tracker whose disk is full must not end a training run.
    """

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._listeners = list(listeners)

    def phase(self, name: str, total: int | None = None) -> None:
        self._tell(lambda listener: listener.phase(name, total))

    def progress(self, done: int, text: str = "") -> None:
        self._tell(lambda listener: listener.progress(done, text))

    def record(self, record: Mapping[str, Any]) -> None:
        self._tell(lambda listener: listener.record(record))

    def note(self, text: str) -> None:
        self._tell(lambda listener: listener.note(text))

    def close(self) -> None:
        # The last to come is the first to go: trackers stand behind the display, which can still say that one failed.
        while self._listeners:
            listener = self._listeners.pop()
            try:
                listener.close()
            except Exception as error:
                self.note(_farewell(listener, error))

    def _tell(self, say: Callable[[Listener], None]) -> None:
        farewells = []
        for listener in tuple(self._listeners):
            try:
                say(listener)
            except Exception as error:
                self._listeners.remove(listener)
                with suppress(Exception):
                    listener.close()
                farewells.append(_farewell(listener, error))
        for farewell in farewells:
            self.note(farewell)


def _farewell(listener: Listener, error: Exception) -> str:
    return f"{type(listener).__name__} is left out from here on, training goes on: {type(error).__name__}: {error}"
