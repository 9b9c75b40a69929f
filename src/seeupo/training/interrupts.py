"""Ctrl-C handling: the first finishes the current step and saves, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from seeupo.training.loop import Interrupted


@contextmanager
def interruptible(notify: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Handle SIGINT and SIGTERM, and yield a function that raises `Interrupted` after the first signal.

    `notify` is called with a message for the user. Outside the main thread Python cannot handle signals, and the
    function does nothing.
    """
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        notify("Stopping after the current step, which is saved. Press Ctrl-C again to stop at once.")

    def pause() -> None:
        if received:
            raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield pause
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield pause
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
