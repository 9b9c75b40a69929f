"""Ctrl-C handling: the first finishes the current step and saves, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from seeupo.callbacks import Callback


class Interrupted(KeyboardInterrupt):
    """A run was stopped by the user, and saved at a point from which it can be resumed."""


class Interruption(Callback):
    """Raises `Interrupted` at the next point from which a run can be resumed, after SIGINT or SIGTERM.

    Args:
        notify: Called with a message for the user.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.notify, self.requested = notify, False

    def handle(self, number: int, _: FrameType | None) -> None:
        """Handle a signal; the second one raises `KeyboardInterrupt`."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self.notify("Stopping after the current step, which is saved. Press Ctrl-C again to stop at once.")

    def on_progress(self, done: int, text: str = "") -> None:
        self._check()

    def on_iteration(self, iteration: int) -> None:
        self._check()

    def _check(self) -> None:
        if self.requested:
            raise Interrupted


@contextmanager
def interruptible(notify: Callable[[str], None]) -> Iterator[Interruption]:
    """Handle SIGINT and SIGTERM. Outside the main thread Python cannot handle signals, and nothing is interrupted."""
    interruption = Interruption(notify)
    with _handled((signal.SIGINT, signal.SIGTERM), interruption.handle):
        yield interruption


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that temporary files are removed."""
    with _handled((signal.SIGTERM,), signal.default_int_handler):
        yield


@contextmanager
def _handled(signals: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
