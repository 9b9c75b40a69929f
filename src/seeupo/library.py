"""What `from seeupo import ...` gives: runs that leave a report behind."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

from seeupo.report.page import PageError
from seeupo.report.report import write_report
from seeupo.training import train as training
from seeupo.training.run_folder import REPORT, RunError


def report_of_run(folder: Path) -> None:
    """Write a run's report into its folder. A run is no worse for lacking one, so what goes wrong is only said."""
    try:
        write_report([folder], folder / REPORT)
    except (PageError, RunError) as error:
        warnings.warn(f"the report was not written: {error}", stacklevel=2)


train = partial(training.train, finish=report_of_run)
resume = partial(training.resume, finish=report_of_run)
