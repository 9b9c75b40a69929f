"""Repeated passes over the same items, each in a different random order."""

from __future__ import annotations

import random


class ShuffledPasses:
    """An endless sequence of indices in which each of `count` items comes once per pass, in random order.

    The index at a position depends only on the seed and the position, so a resumed run can continue anywhere.
    """

    def __init__(self, count: int, seed: str) -> None:
        self.count, self.seed = count, seed
        self._pass, self._order = -1, list(range(count))

    def __getitem__(self, position: int) -> int:
        current, within = divmod(position, self.count)
        if current != self._pass:
            self._pass, self._order = current, list(range(self.count))
            random.Random(f"{self.seed}/pass {current}").shuffle(self._order)
        return self._order[within]
