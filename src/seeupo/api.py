"""The public `seeupo.train` and `seeupo.resume`, which write a report at the end of a run."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

from seeupo.errors import ReportError, RunError
from seeupo.report.report import write_report
from seeupo.runs.run_directory import REPORT
from seeupo.training import train as training


def write_run_report(run_dir: Path) -> None:
    """Write a run's report into its directory. A failure is only a warning, because the run is complete without it."""
    try:
        write_report([run_dir], run_dir / REPORT)
    except (ReportError, RunError) as error:
        warnings.warn(f"the report was not written: {error}", stacklevel=2)


train = partial(training.train, on_finish=write_run_report)
resume = partial(training.resume, on_finish=write_run_report)
