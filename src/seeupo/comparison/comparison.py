"""The phases of a comparison: warm starts, calibration of the match, tuning, and the runs that are reported."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from seeupo.comparison.matching import (
    FRACTIONAL,
    Cost,
    check_units,
    known_cost,
    measured_cost,
    spent_per_iteration,
    unit_of,
)
from seeupo.comparison.planned_runs import PlannedRun, Planner, Settings
from seeupo.comparison.result_store import RunResult, Store
from seeupo.comparison.study_file import Study
from seeupo.config.schema import Recipe


@dataclass(frozen=True)
class Tuning:
    """Result of an arm's tuning.

    Attributes:
        best: Settings with the highest mean score over the tuning seeds; the first of equal ones.
        tried: All settings with the score of each tuning seed.
    """

    best: Settings
    tried: Sequence[tuple[Settings, Sequence[float]]]

    def at_the_end(self, values: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return the keys whose chosen value is the lowest or highest, so that a better one may be beyond it."""
        return [
            key
            for key, tried in values.items()
            if len(tried) > 1
            and all(isinstance(value, int | float) for value in tried)
            and self.best.get(key) in (min(tried), max(tried))
        ]


class Comparison:
    """A study with its results so far. Later phases depend on the results of earlier ones."""

    def __init__(self, study: Study, recipe: Recipe, store: Store, trust: Collection[str] = ()) -> None:
        self.study, self.recipe, self.store = study, recipe, store
        self.planner = Planner(study, recipe, trust)
        algorithms = {arm: self.planner.run(arm, study.seeds[0], {}).recipe.algorithm for arm in study.arms}
        check_units(study, algorithms)
        self.units = {arm: unit_of(algorithm, study.match) for arm, algorithm in algorithms.items()}
        self._known = {arm: known_cost(algorithm, study.match) for arm, algorithm in algorithms.items()}
        for arm in study.arms:  # all settings are checked before any run starts
            for settings in self.planner.grid:
                self.planner.run(arm, study.seeds[0], settings)

    def result(self, run: PlannedRun) -> RunResult | None:
        return self.store.result(run)

    def finished(self, run: PlannedRun) -> RunResult:
        """Return the result of a run that is known to be finished."""
        result = self.store.result(run)
        assert result is not None, f"{run.name} is not finished"
        return result

    def phases(self) -> Iterator[tuple[str, list[PlannedRun]]]:
        """Yield name and runs of each phase in order; the runs of one must be finished before the next is asked for."""
        seeds = (*self.study.tuning_seeds, *self.study.seeds)
        starts = [start for seed in seeds if (start := self.planner.warm_start(seed)) is not None]
        yield "warm starts", starts
        yield "calibration", [run for arm in self.study.arms for run in self._calibrations(arm)]
        yield "tuning", [run for arm in self.study.arms for run in self._tuning_runs(arm)]
        # Seed by seed, so that a study that is stopped early has the same seeds of every arm.
        yield "runs", [self.reported(arm, seed) for seed in self.study.seeds for arm in self.study.arms]

    def finished_seeds(self) -> list[int]:
        """Return the seeds whose runs are finished in all arms; none before tuning is."""
        for name, runs in self.phases():
            if name == "runs":
                break
            if not all(map(self.result, runs)):
                return []
        study = self.study
        return [seed for seed in study.seeds if all(self.result(self.reported(arm, seed)) for arm in study.arms)]

    def counts(self) -> dict[str, int]:
        """Return the number of runs of each phase."""
        study, grid = self.study, self.planner.grid
        warm = 0 if self.recipe.warm_start is None else len(study.seeds) + len(study.tuning_seeds)
        return {
            "warm starts": warm,
            "calibration": sum(len(self._calibrations(arm)) for arm in study.arms),
            "tuning": len(study.arms) * len(grid) * len(study.tuning_seeds),
            "runs": len(study.arms) * len(study.seeds),
        }

    def matched(self, arm: str) -> Settings:
        """Return the setting with which an arm spends as much as the others; empty if there is none."""
        if (unit := self.units[arm]) is None:
            return {}
        return {f"algorithm.{unit}": self.costs[arm].nearest(self.target, fractional=unit in FRACTIONAL)}

    @cached_property
    def costs(self) -> dict[str, Cost]:
        """Cost per iteration of each arm, as calibrated with its best settings."""
        return {arm: self._known[arm] or self._measured_cost(arm) for arm in self.study.arms}

    @cached_property
    def target(self) -> float:
        """Amount per iteration that all arms should spend."""
        return max(cost.at(1) for cost in self.costs.values())

    def tuned(self, arm: str) -> Tuning:
        """Return the settings that tuning chose for an arm."""
        tried = [
            (settings, self._scores([self._tuning_run(arm, seed, settings) for seed in self.study.tuning_seeds]))
            for settings in self.planner.grid
        ]
        best = max(tried, key=lambda trial: sum(trial[1]))[0] if tried else {}
        return Tuning(best, tried)

    def reported(self, arm: str, seed: int) -> PlannedRun:
        """Return a run that is reported, with the arm's tuned and matched settings."""
        return self.planner.run(arm, seed, {**self._best[arm], **self.matched(arm)})

    @property
    def iterations(self) -> int:
        return self.recipe.run.total_iterations

    @cached_property
    def _best(self) -> dict[str, Settings]:
        return {arm: self.tuned(arm).best for arm in self.study.arms}

    def _calibrations(self, arm: str) -> list[PlannedRun]:
        """Return the runs that show what an arm spends: those of its tuning with one unit, and one with two units."""
        if self.study.match == "none" or self._known[arm] is not None:
            return []
        runs = [run for settings in self._settings for run in self._with_units(arm, settings, 1)]
        return [*runs, self._with_units(arm, self._settings[0], 2)[0]] if self._needs_two_units(arm) else runs

    def _measured_cost(self, arm: str) -> Cost:
        best = max(self._settings, key=lambda settings: sum(self._scores(self._with_units(arm, settings, 1))))
        results = [self.finished(run) for run in self._with_units(arm, best, 1)]
        spent = sum(spent_per_iteration(result, self.study.match) for result in results) / len(results)
        pair = None
        if self._needs_two_units(arm):
            one, two = (self.finished(self._with_units(arm, self._settings[0], units)[0]) for units in (1, 2))
            pair = one, two
        return measured_cost(self.study.match, spent, pair)

    def _needs_two_units(self, arm: str) -> bool:
        return self.study.match in ("tokens", "seconds") and self.units[arm] is not None

    def _with_units(self, arm: str, settings: Settings, units: int) -> list[PlannedRun]:
        """Return an arm's runs on the seeds of the calibration; without tuning these are reported."""
        unit = self.units[arm]
        if unit is not None:
            settings = {**settings, f"algorithm.{unit}": units}
        return [self.planner.run(arm, seed, settings) for seed in self.study.tuning_seeds or self.study.seeds]

    @property
    def _settings(self) -> list[dict[str, Any]]:
        return self.planner.grid or [{}]

    def _scores(self, runs: Sequence[PlannedRun]) -> list[float]:
        return [reward_auc(self.finished(run), self.iterations) for run in runs]

    def _tuning_runs(self, arm: str) -> list[PlannedRun]:
        return [
            self._tuning_run(arm, seed, settings) for settings in self.planner.grid for seed in self.study.tuning_seeds
        ]

    def _tuning_run(self, arm: str, seed: int, settings: Settings) -> PlannedRun:
        return self.planner.run(arm, seed, {**settings, **self.matched(arm)})


def reward_auc(result: RunResult, iterations: int) -> float:
    """Return the area under the curve of mean rewards: their mean over all iterations."""
    return sum(padded_rewards(result, iterations)) / iterations


def padded_rewards(result: RunResult, iterations: int) -> list[float]:
    """Return the rewards of all iterations; those after a failure are 0, or the run's lowest if that is negative."""
    return [*result.rewards, *[min((0.0, *result.rewards))] * (iterations - len(result.rewards))]
