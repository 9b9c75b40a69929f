"""Make arms spend equally: choose the number of mini-batches, steps per turn or epochs from measured costs.

All arms collect the same number of trajectories. The arm that spends most with one unit (one mini-batch, one step per
turn or one epoch) sets the target per iteration; the others get the number of units that comes nearest to it.
Numbers of mini-batches may be fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seeupo.comparison.result_store import RunResult
from seeupo.comparison.study_file import Match, Study
from seeupo.config.algorithms import AlgorithmSettings
from seeupo.config.changes import flat
from seeupo.errors import ConfigError

UNITS: Mapping[str, tuple[str, ...]] = {
    "optimizer_steps": ("minibatches", "steps_per_turn"),
    "tokens": ("epochs",),
    "seconds": ("epochs",),
    "none": (),
}
"""Options of algorithms, by what is matched, with which the quantity grows linearly."""
SPENDING = tuple(f"algorithm.{name}" for name in ("minibatches", "steps_per_turn", "epochs", "turns_per_agent"))
"""Settings on which the number of optimizer steps or tokens depends."""
FRACTIONAL = ("minibatches",)
"""Options that need not be integers."""
MAX_UNITS = 64


@dataclass(frozen=True)
class Cost:
    """The amount that an arm spends per iteration: a fixed one, and one for each unit."""

    fixed: float
    per_unit: float

    def at(self, units: float) -> float:
        return self.fixed + units * self.per_unit

    def nearest(self, target: float, *, fractional: bool) -> int | float:
        """Return the number of units that comes nearest to a target, at least 1."""
        if self.per_unit <= 0:
            return 1
        units = max(1.0, min(MAX_UNITS, (target - self.fixed) / self.per_unit))
        return round(units, 2) if fractional and abs(units - round(units)) > 0.02 else round(units)


def unit_of(algorithm: AlgorithmSettings, match: Match) -> str | None:
    """Return the option of an algorithm that is used to match it; None if it has none."""
    return next((name for name in UNITS[match] if name in algorithm.options), None)


def check_units(study: Study, algorithms: Mapping[str, AlgorithmSettings]) -> None:
    """Raise if an arm sets the option that the match chooses, or if tuning would change what an arm spends."""
    if study.match != "none":
        for key, _ in flat(study.grid):
            if key in SPENDING:
                problem = f"grid.{key}: it changes what an arm spends, which match = {study.match!r} keeps equal."
                raise ConfigError([f"{problem} Make an arm of each value, or set match = 'none'."])
    for arm, algorithm in algorithms.items():
        unit = unit_of(algorithm, study.match)
        if unit is not None and unit in study.arms[arm]["algorithm"]:
            problem = f"arms.{arm}.algorithm.{unit}: it is chosen by match = {study.match!r}."
            raise ConfigError([f"{problem} Leave it out, or set match = 'none'."])


def known_cost(algorithm: AlgorithmSettings, match: Match) -> Cost | None:
    """Return the cost of an arm that takes a fixed number of optimizer steps; None if it must be measured."""
    if match == "optimizer_steps" and "minibatches" in algorithm.options:
        return Cost(0.0, float(algorithm.options["epochs"]))
    return None


def measured_cost(match: Match, spent: float, one_and_two: tuple[RunResult, RunResult] | None) -> Cost:
    """Return the cost of an arm from calibration runs.

    Args:
        match: What is matched.
        spent: Amount per iteration with one unit.
        one_and_two: Runs with one unit and with two that are alike otherwise. Optimizer steps need none, because they
            are proportional to the units.
    """
    if one_and_two is None:
        return Cost(0.0, spent)
    less, more = (spent_per_iteration(result, match) for result in one_and_two)
    per_unit = max(0.0, more - less)
    return Cost(spent - per_unit, per_unit)


def spent_per_iteration(result: RunResult, match: Match) -> float:
    return amount_of(result, match) / max(1, len(result.rewards))


def amount_of(result: RunResult, match: Match) -> float:
    """Return how much of the matched quantity a run has spent."""
    if match == "tokens":
        return float(result.tokens)
    return result.training_seconds if match == "seconds" else float(result.optimizer_steps)
