"""Records of comparisons with a peer: what was compared, and the largest difference."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

TOLERANCE = 1e-5


@dataclass
class Ledger:
    """Differences from one peer, relative to the peer's largest number if that is above 1."""

    peer: str
    dtype: torch.dtype = torch.float64
    largest: dict[tuple[str, torch.dtype], float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def compare(self, what: str, ours: Tensor, theirs: Tensor) -> None:
        """Record the difference of two tensors of equal shape."""
        assert ours.shape == theirs.shape, f"{what}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)} differ"
        assert ours.numel(), f"{what}: nothing to compare"
        ours, theirs = ours.detach().double(), theirs.detach().double()
        difference = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1.0))
        key = what, self.dtype
        # Not max(), which may drop a NaN.
        if key not in self.largest or not difference <= self.largest[key]:
            self.largest[key] = difference
        if not difference <= TOLERANCE:
            self.failures.append(f"{self.peer}, {what}, {self.dtype}: differs by {difference:.2e}")

    def run(self, check: Callable[[Ledger, int], None], seed: int) -> None:
        """Run one check with one seed; an exception is recorded as a failure and does not stop other checks."""
        with self._failures_of(f"{self.peer}, {check.__name__}, seed {seed}, {self.dtype}"):
            check(self, seed)

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield what was compared, with which peer, and the largest difference in float64 and float32."""
        for what in dict.fromkeys(what for what, _ in self.largest):
            found = (self.largest.get((what, dtype)) for dtype in (torch.float64, torch.float32))
            yield what, self.peer, *("-" if value is None else f"{value:.1e}" for value in found)

    @contextmanager
    def _failures_of(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.failures.append(f"{name}:\n{traceback.format_exc()}")
