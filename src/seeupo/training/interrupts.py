"""Ctrl-C: the first finishes the step under way, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from seeupo.training.loop import Interrupted


@contextmanager
def interruptible(tell: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Gives a function that raises `Interrupted` once somebody has asked to stop.

    A scheduler's SIGTERM asks like the first Ctrl-C. Outside the main thread signals cannot be heard, and nothing asks.
    """
    asked: list[int] = []

    def hear(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt
        tell("Stopping: the step under way is finished and saved. Ctrl-C again stops at once.")

    def pause() -> None:
        if asked:
            raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield pause
        return
    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield pause
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
