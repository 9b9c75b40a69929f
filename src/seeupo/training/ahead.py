"""Sample the next iteration while the current one is being updated (`collect.lag = 1`)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from seeupo.errors import EngineLost
from seeupo.rollout.collector import Collected, Collector
from seeupo.runs.trajectory_files import read_header, read_trajectories, write_trajectories
from seeupo.types import Trajectory

AHEAD = "ahead.jsonl.gz"
"""File of a checkpoint with the trajectories that were sampled ahead."""


class AheadCollector:
    """Collects in a thread. The sampler keeps the weights from before the update, so trajectories are one update old.

    Attributes:
        collected: What was sampled for the next iteration; None if nothing was.
    """

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.collected: Collected | None = None

    @contextmanager
    def collecting(self, iteration: int, *, policy_version: int) -> Iterator[None]:
        """Sample the groups of an iteration during the context, and wait for them at its end."""
        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(self.collector.collect, iteration, policy_version=policy_version)
            try:
                yield
            except EngineLost:
                # The engine can be restored, but not if the samplers are lost for good.
                if (error := future.exception()) is not None:
                    raise error from None
                raise
            finally:
                wait([future])
            self.collected = future.result()

    def take(self) -> Collected | None:
        """Return what was sampled, once."""
        collected, self.collected = self.collected, None
        return collected

    def save(self, path: Path) -> None:
        """Write what was sampled into a checkpoint."""
        if self.collected is None:
            return
        counts = asdict(self.collected)
        del counts["groups"]
        write_trajectories(path / AHEAD, self.collected.trajectories, header={"ahead": counts})

    def load(self, path: Path) -> None:
        """Read what `save` wrote."""
        self.collected = None
        file = path / AHEAD
        if not file.exists():
            return
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in read_trajectories(file):
            groups.setdefault(trajectory.group, []).append(trajectory)
        counts = read_header(file)["ahead"]
        self.collected = Collected({name: tuple(group) for name, group in groups.items()}, **counts)
