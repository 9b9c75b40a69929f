"""Waiting for what happens soon, on a machine of any speed."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], bool], seconds: float = 600.0) -> None:
    """Return as soon as the condition holds; fail if it does not within the given time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"still not true after {seconds:g} s"
        time.sleep(0.05)
