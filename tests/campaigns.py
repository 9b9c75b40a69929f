"""Parameters of campaigns, of which the suite runs a few and `make nightly` all."""

from collections.abc import Collection, Iterable

import pytest


def nightly_except(always: Collection, values: Iterable) -> list:
    """Return the values as parameters of a test, of which those that are not in `always` have the marker `nightly`."""
    values = list(values)
    assert set(always) <= set(values)
    return [value if value in always else pytest.param(value, marks=pytest.mark.nightly) for value in values]
