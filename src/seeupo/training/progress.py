"""The progress of a run: what a checkpoint keeps besides the engine's files."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from seeupo.config.schema import RunSettings
from seeupo.utils.text import counted, listed


@dataclass
class Progress:
    """The state of the loop.

    Attributes:
        warm_steps: Finished optimizer steps of the warm start.
        iteration: Last finished iteration.
        evaluated: Last iteration with an evaluation; -1 before the first.
        drawn: Number of tasks drawn so far.
        best, best_iteration: Best evaluation, the earliest of equal ones; `stale` counts the evaluations since.
        optimizer_steps: Number of optimizer steps in all iterations.
        seconds, tokens: Seconds by phase and tokens by kind so far.
        laps: Seconds of the latest part of each phase; not kept in checkpoints.
    """

    warm_steps: int = 0
    iteration: int = 0
    evaluated: int = -1
    drawn: int = 0
    best: float = -1.0
    best_iteration: int = 0
    stale: int = 0
    optimizer_steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.laps: dict[str, float] = {}

    def covers(self, record: Mapping[str, Any]) -> bool:
        """Return whether a metrics record was written before this state; later ones will be written again."""
        if record["kind"] == "warm_start":
            return bool(record["step"] <= self.warm_steps)
        return bool(record["iteration"] <= (self.evaluated if record["kind"] == "evaluation" else self.iteration))

    def unrecorded(
        self, records: Iterable[Mapping[str, Any]], evaluations: Collection[int], *, after: int, warm_start: bool
    ) -> str | None:
        """Return which finished work has no metrics record, as text; None if the records are complete.

        Args:
            evaluations: Iterations with a result file of an evaluation.
            after: Records of this iteration and of earlier ones may be missing.
            warm_start: Whether records of a warm start are expected.
        """
        present: dict[str, set[int]] = {}
        for record in records:
            present.setdefault(record["kind"], set()).add(record["iteration"])
        iterations = set(range(max(after, 0) + 1, self.iteration + 1)) - present.get("iteration", set())
        evaluated = {number for number in (*evaluations, self.evaluated) if max(after, -1) < number <= self.evaluated}
        evaluated -= present.get("evaluation", set())
        lost = ["the warm start"] if warm_start and after < 0 and "warm_start" not in present else []
        lost += [listed("iteration", sorted(iterations))] if iterations else []
        lost += [f"the {listed('evaluation', sorted(evaluated))}"] if evaluated else []
        return ", and of ".join(lost) or None

    def reason_to_stop(self, settings: RunSettings) -> str | None:
        """Return why training should stop now, or None."""
        if self.iteration >= settings.total_iterations:
            return f"{counted(settings.total_iterations, 'iteration')} done"
        if settings.target is not None and self.best >= settings.target:
            return f"the target of {settings.target:g} is reached"
        if settings.patience is not None and self.stale >= settings.patience:
            return f"no improvement in {counted(self.stale, 'evaluation')}"
        if settings.max_minutes is not None and sum(self.seconds.values()) >= 60 * settings.max_minutes:
            return f"the time limit of {settings.max_minutes:g} minutes is reached"
        return None

    @property
    def is_best(self) -> bool:
        """Whether the evaluation of the current policy is the best so far."""
        return self.best_iteration == self.iteration == self.evaluated

    def add_evaluation(self, score: float) -> None:
        """Note the score of the current policy."""
        self.evaluated = self.iteration
        self.stale += 1
        if score > self.best:  # of equal scores the earliest is the best
            self.best = score
            self.best_iteration = self.iteration
            self.stale = 0

    def add_iteration(self, record: Mapping[str, Any]) -> None:
        """Add the optimizer steps and tokens of an iteration."""
        self.optimizer_steps += int(record["algorithm"].get("optimizer_steps", 0))
        for name in ("action_tokens", "prompt_tokens", "update_tokens"):
            self.tokens[name] = self.tokens.get(name, 0) + record[name]

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        """Add the seconds of the context to a phase."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.laps[phase] = time.monotonic() - started
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self.laps[phase]
