"""A stream of chance for each episode.

Many environments draw from the global generators of `random` and of numpy. Episodes that take turns in one process
would then disturb one another, and none could be repeated.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class OwnRandomness:
    """The global generators as one episode has left them."""

    def __init__(self, seed: int) -> None:
        before = states()
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed % 2**32)
        self._own = states()
        bring_back(before)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Inside, the global generators are this episode's; afterwards they are as they were before."""
        before = states()
        bring_back(self._own)
        try:
            yield
        finally:
            self._own = states()
            bring_back(before)


def states() -> dict[str, Any]:
    """The states of the global generators that there are. numpy counts only if somebody has loaded it."""
    found: dict[str, Any] = {"random": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = numpy.random.get_state()
    return found


def bring_back(states: Mapping[str, Any]) -> None:
    random.setstate(states["random"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
