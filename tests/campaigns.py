"""Parameters of campaigns, of which the suite runs a few and `make nightly` all."""

from collections.abc import Collection, Iterable

import pytest


def nightly_except(always: Collection, values: Iterable) -> list:
    """Return the values as parameters of a test, of which those that are not in `always` have the marker `nightly`.

    A tuple has values of several parameters.
    """
    values = list(values)
    assert set(always) <= set(values)
    arguments = {value: value if isinstance(value, tuple) else (value,) for value in values}
    marks = {value: () if value in always else (pytest.mark.nightly,) for value in values}
    return [pytest.param(*arguments[value], marks=marks[value]) for value in values]
