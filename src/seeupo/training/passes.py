"""Going through the same things again and again, each time in another order."""

from __future__ import annotations

import random


class Passes:
    """All of `count` things come once, in random order, before one comes again.

    What comes at a place depends on the seed and the place only, so that a run can go on anywhere.
    """

    def __init__(self, count: int, seed: str) -> None:
        self.count, self.seed = count, seed
        self._passed, self._order = -1, list(range(count))

    def __getitem__(self, place: int) -> int:
        passed, within = divmod(place, self.count)
        if passed != self._passed:
            self._passed, self._order = passed, list(range(self.count))
            random.Random(f"{self.seed}/pass {passed}").shuffle(self._order)
        return self._order[within]
