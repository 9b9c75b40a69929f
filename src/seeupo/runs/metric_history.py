"""The latest metrics of a run, for alarms. See docs/reference/metrics.md."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

Record = Mapping[str, Any]
WINDOW = 20
"""Number of iterations that alarms look back at most."""
GAP_BOUNDS = {"float64": 1e-3, "float32": 1e-3, "bfloat16": 0.05}
"""Highest expected `sampler_gap` by the data type of the computation; see docs/reference/metrics.md."""


class History:
    """Records of the latest iterations, with a few statistics of the whole run.

    Args:
        dtype: Data type of the computation.
        threads: Number of PyTorch threads that compute the updates; 1 if they do not matter, as on a GPU.
    """

    def __init__(self, dtype: str, threads: int = 1) -> None:
        self.dtype, self.gap_bound, self.threads = dtype, GAP_BOUNDS[dtype], threads
        self._records: deque[Record] = deque(maxlen=WINDOW)
        self._first_entropies: list[float] = []
        self._first_records: list[Record] = []
        self.best_success = 0.0
        self.solved = False
        """Whether an attempt of any iteration was solved."""
        self.warm_start: Record | None = None
        """The latest record of the warm start."""

    def add(self, record: Record) -> None:
        self._records.append(record)
        if len(self._first_records) < 3:
            self._first_records.append(record)
        self.solved |= float(record["success"]) > 0
        entropy = number(record, "entropy")
        if entropy is not None and len(self._first_entropies) < 5:
            self._first_entropies.append(entropy)
        if self.recent_success is not None:
            self.best_success = max(self.best_success, self.recent_success)

    @property
    def latest(self) -> Record:
        return self._records[-1]

    @property
    def recent_success(self) -> float | None:
        """Mean success rate of the last 10 iterations; None if there are fewer."""
        return self.mean_success(10)

    @property
    def first_entropy(self) -> float | None:
        """Mean entropy of the first five iterations; None before the fifth."""
        return mean(self._first_entropies) if len(self._first_entropies) == 5 else None

    def last(self, count: int) -> list[Record] | None:
        """Return the records of the last `count` iterations; None if there are fewer."""
        return list(self._records)[-count:] if len(self._records) >= count else None

    @property
    def slowdown(self) -> float | None:
        """Time of an update in the last three iterations relative to the first three, in seconds or, if that is lower,
        in seconds per token; None if it is unknown.
        """
        before, now = _update_times(self._first_records), _update_times(self.last(3) or ())
        if len(before) < 3 or len(now) < 3:
            return None
        return min(median(time[unit] for time in now) / median(time[unit] for time in before) for unit in (0, 1))

    def mean_success(self, count: int) -> float | None:
        """Return the mean success rate of the last `count` iterations; None if there are fewer."""
        records = self.last(count)
        return None if records is None else mean([float(record["success"]) for record in records])


def _update_times(records: Iterable[Record]) -> list[tuple[float, float]]:
    """Return the seconds of each update, and its seconds per token; none for iterations without one."""
    times = []
    for record in records:
        timings = record.get("timings")
        seconds = number(timings, "update") if isinstance(timings, Mapping) else None
        tokens = number(record, "update_tokens")
        if seconds and tokens:
            times.append((seconds, seconds / tokens))
    return times


def number(record: Record, key: str) -> float | None:
    """Return a number of a record; None if it is missing or not a number."""
    value = record.get(key)
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:  # an integer beyond the range of floats
        return None


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def turn_values(records: Iterable[Record], key: str) -> list[float]:
    """Return all values of a per-turn metric."""
    return [
        value for record in records for turn in record.get("turns") or () if (value := number(turn, key)) is not None
    ]


def all_equal(record: Record) -> bool | None:
    """Return whether all rewards were equal within each group; None if unknown."""
    dead, groups = number(record, "dead_groups"), number(record, "groups")
    return None if dead is None or not groups else dead >= groups
