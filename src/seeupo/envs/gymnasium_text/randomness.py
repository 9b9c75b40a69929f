"""Separate random state for each episode.

Many environments use the global generators of `random` and numpy. Without this, interleaved episodes in one process
would influence one another and could not be reproduced.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class EpisodeRandomness:
    """Keeps the states of the global generators for one episode."""

    def __init__(self, seed: int) -> None:
        before = generator_states()
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed % 2**32)
        self._states = generator_states()
        restore(before)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Swap in this episode's generator states, and restore the previous ones on exit."""
        before = generator_states()
        restore(self._states)
        try:
            yield
        finally:
            self._states = generator_states()
            restore(before)


def generator_states() -> dict[str, Any]:
    """Return the states of the global generators; numpy's only if numpy has been imported."""
    states: dict[str, Any] = {"random": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    return states


def restore(states: Mapping[str, Any]) -> None:
    random.setstate(states["random"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
