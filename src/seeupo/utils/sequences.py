"""Functions on sequences."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the number of equal items at the start of two sequences."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
