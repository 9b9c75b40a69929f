"""Estimate how long a comparison takes, from its finished runs or from the study file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from seeupo.comparison.comparison import Comparison


@dataclass(frozen=True)
class Estimate:
    """The runs and the time that a comparison still needs.

    Attributes:
        phases: Numbers of runs and of finished runs by phase. A warm start counts as a run.
        seconds: Estimated seconds to the end; None if no run is finished and the study file does not say.
    """

    phases: Mapping[str, tuple[int, int]]
    seconds: float | None

    @property
    def text(self) -> str:
        left = sum(count - finished for count, finished in self.phases.values())
        if left == 0:
            return "nothing left to run"
        if self.seconds is None:
            return f"{left} runs left; unknown before the first one ends"
        calibration, calibrated = self.phases["calibration"]
        # A calibration run is also one of tuning or of the results if its arm turns out to need one unit.
        return f"{'at most' if calibrated < calibration else 'about'} {duration(self.seconds)} for {left} runs"


def estimate(comparison: Comparison, jobs: int) -> Estimate:
    """Return the numbers of runs by phase and the estimated time, with `jobs` runs at a time."""
    phases = {name: (count, 0) for name, count in comparison.counts().items()}
    spent = list[float]()
    for phase in comparison.phases():
        finished = [result for run in phase.runs if (result := comparison.result(run)) is not None]
        phases[phase.name] = (len(phase.runs), len(finished))
        spent += [result.total_seconds for result in finished if phase.name != "warm starts"]
        if len(finished) < len(phase.runs):
            break  # later phases depend on these results
    typical = median(spent) if spent else comparison.study.run_seconds
    left = [count - finished for count, finished in phases.values()]
    seconds = None if typical is None else typical * sum(math.ceil(count / jobs) for count in left)
    return Estimate(phases, seconds)


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
