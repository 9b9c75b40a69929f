"""Validate numbers from untrusted files."""

from __future__ import annotations

import math


def finite_number(value: object) -> float | None:
    """Return `value` if it is a finite number, and None otherwise; booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer too large for a float
        return None
