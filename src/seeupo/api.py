"""What `from seeupo import ...` gives: runs that leave a report behind."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

from seeupo.errors import ReportError, RunError
from seeupo.report.report import write_report
from seeupo.runs.run_directory import REPORT
from seeupo.training import train as training


def report_of_run(folder: Path) -> None:
    """Write a run's report into its folder. A run is no worse for lacking one, so what goes wrong is only said."""
    try:
        write_report([folder], folder / REPORT)
    except (ReportError, RunError) as error:
        warnings.warn(f"the report was not written: {error}", stacklevel=2)


train = partial(training.train, on_finish=report_of_run)
resume = partial(training.resume, on_finish=report_of_run)
