"""Estimate how long a comparison takes, from its finished runs or from the study file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from seeupo.comparison.comparison import Comparison


def estimate(comparison: Comparison, jobs: int) -> Iterator[tuple[str, str]]:
    """Yield labels and texts: the number of runs of each phase, and the time that is left with `jobs` at a time."""
    phases = {name: (count, 0) for name, count in comparison.counts().items()}
    spent = list[float]()
    for phase, planned in comparison.phases():
        finished = [result for run in planned if (result := comparison.result(run)) is not None]
        phases[phase] = (len(planned), len(finished))
        spent += [result.total_seconds for result in finished if phase != "warm starts"]
        if len(finished) < len(planned):
            break  # later phases depend on these results
    for name, (count, finished_runs) in phases.items():
        if count:
            yield name, f"{count}" + (f", {finished_runs} finished" if finished_runs else "")
    left = {name: count - finished_runs for name, (count, finished_runs) in phases.items()}
    typical = median(spent) if spent else comparison.study.run_seconds
    runs = sum(left.values())
    if runs == 0:
        text = "nothing left to run"
    elif typical is None:
        text = f"{runs} runs left; unknown before the first one ends"
    else:
        # A calibration run is also one of tuning or of the results if its arm turns out to need one unit.
        bound = "at most" if left["calibration"] else "about"
        seconds = typical * sum(math.ceil(count / jobs) for count in left.values())
        text = f"{bound} {duration(seconds)} for {runs} runs"
    yield "time", f"{text}, {jobs} at a time"


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
