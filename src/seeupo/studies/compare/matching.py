"""Make arms spend equally: choose the number of mini-batches, steps per turn or epochs from measured costs.

All arms collect the same number of trajectories. The arm that spends most with one unit (one mini-batch, one step per
turn or one epoch) sets the target per iteration; the others get the number of units that comes nearest to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from seeupo.errors import ConfigError
from seeupo.studies.compare.store import RunResult
from seeupo.studies.compare.study import Match, Study
from seeupo.types import Algorithm

UNITS: Mapping[str, tuple[str, ...]] = {
    "optimizer_steps": ("minibatches", "steps_per_turn"),
    "tokens": ("epochs",),
    "seconds": ("epochs",),
    "none": (),
}
"""Options of algorithms, by what is matched, with which the quantity grows linearly."""
MAX_UNITS = 64


@dataclass(frozen=True)
class Cost:
    """What an arm spends per iteration: a fixed amount, and an amount for each unit."""

    fixed: float
    per_unit: float

    def at(self, units: int) -> float:
        return self.fixed + units * self.per_unit

    def nearest(self, target: float) -> int:
        """Return the number of units that comes nearest to a target, at least 1."""
        if self.per_unit <= 0:
            return 1
        return max(1, min(MAX_UNITS, round((target - self.fixed) / self.per_unit)))


def unit_of(algorithm: Algorithm, match: Match) -> str | None:
    """Return the option of an algorithm that is used to match it; None if it has none."""
    names = {each.name for each in fields(algorithm)}  # type: ignore[arg-type]
    return next((name for name in UNITS[match] if name in names), None)


def check_units(study: Study, algorithms: Mapping[str, Algorithm]) -> None:
    """Raise if an arm sets the option that the match chooses."""
    for arm, algorithm in algorithms.items():
        unit = unit_of(algorithm, study.match)
        if unit is not None and unit in study.arms[arm]["algorithm"]:
            problem = f"arms.{arm}.algorithm.{unit}: it is chosen by match = {study.match!r}."
            raise ConfigError([f"{problem} Leave it out, or set match = 'none'."])


def known_cost(algorithm: Any, match: Match) -> Cost | None:
    """Return the cost of an arm that takes a fixed number of optimizer steps; None if it must be measured."""
    if match == "optimizer_steps" and getattr(algorithm, "split", None) == "trajectory":
        return Cost(0.0, float(algorithm.epochs))
    return None


def units_to_measure(match: Match) -> tuple[int, ...]:
    """Return the numbers of units of the calibration runs; steps are proportional to them, tokens and time are not."""
    return {"optimizer_steps": (1,), "tokens": (1, 2), "seconds": (1, 2), "none": ()}[match]


def measured_cost(results: Mapping[int, RunResult], match: Match) -> Cost:
    """Return the cost per iteration from calibration runs by their number of units."""
    amounts = {units: amount_of(result, match) / max(1, len(result.rewards)) for units, result in results.items()}
    if len(amounts) == 1:
        ((units, amount),) = amounts.items()
        return Cost(0.0, amount / units)
    (few, less), (many, more) = sorted(amounts.items())
    per_unit = max(0.0, (more - less) / (many - few))
    return Cost(less - few * per_unit, per_unit)


def amount_of(result: RunResult, match: Match) -> float:
    """Return how much of the matched quantity a run has spent."""
    if match == "tokens":
        return float(result.tokens)
    return result.training_seconds if match == "seconds" else float(result.optimizer_steps)
