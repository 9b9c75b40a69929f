"""Numbers from files that anyone may have written."""

from __future__ import annotations

import math


def finite_number(value: object) -> float | None:
    """Return `value` if it is a finite finite_number, and None otherwise; booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer too large for a float
        return None
