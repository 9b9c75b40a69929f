"""Measure the report of a long run: 200 iterations of 100 attempts with five turns of about thirty tokens.

Each report is written by a separate process, so that its peak memory is known; a run of ten iterations is the baseline.
Processor seconds do not depend on the load of the machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from side_by_side import HERE, machine, write_results
from workers.measure import timed

from seeupo.report.write import ReportSummary, write_report

LONG, SHORT = 200, 10
GROUPS, SIZE, TURNS, WORDS = 10, 10, 5, 20


def report_costs(run: Path) -> dict[str, Any]:
    """Write the report of a run in a separate process and return its costs."""
    command = [sys.executable, __file__, str(run)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def report(run: Path) -> None:
    """Write the report of a run and print its costs."""
    summaries: list[ReportSummary] = []
    started = time.process_time()
    took = timed(lambda: summaries.append(write_report([run], run.with_suffix(".html"))))
    costs = {
        "trajectories": summaries[0].total,
        "kept": summaries[0].kept,
        "seconds": round(took["seconds"], 2),
        "processor_seconds": round(time.process_time() - started, 2),
        "page_mb": round(summaries[0].size / 1e6, 2),
        "peak_mib": round(took["peak_gib"] * 1024),
    }
    print(json.dumps(costs))


def opening_seconds(page: Path) -> float:
    """Return the median seconds of five until headless Chromium has opened the page."""
    from playwright.sync_api import sync_playwright

    times = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(5):
            tab = browser.new_page()
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready=yes]")
            # The page marks when everything is decoded and drawn.
            times.append(float(tab.evaluate("performance.getEntriesByName('ready')[0].startTime")) / 1000)
            tab.close()
        browser.close()
    return sorted(times)[2]


def main() -> None:
    sys.path.insert(0, str(HERE.parent / "tests" / "report"))
    from made_runs import made_run

    results: dict[str, Any] = {"machine": machine(), "attempts_per_iteration": GROUPS * SIZE, "iterations": {}}
    with tempfile.TemporaryDirectory() as directory:
        for iterations in (SHORT, LONG):
            run = Path(directory) / f"{iterations}-iterations"
            made_run(run, iterations=iterations, groups=GROUPS, size=SIZE, turns=TURNS, words=WORDS)
            costs = results["iterations"][str(iterations)] = report_costs(run)
            costs["opens_in_seconds"] = round(opening_seconds(run.with_suffix(".html")), 2)
            print(
                f"{iterations} iterations, {costs['trajectories']} trajectories: {costs['seconds']} s "
                f"({costs['processor_seconds']} processor seconds), {costs['peak_mib']} MiB, "
                f"{costs['page_mb']} MB with {costs['kept']} trajectories, opens in {costs['opens_in_seconds']} s"
            )
    write_results("report_scale", results)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        report(Path(sys.argv[1]))
    else:
        main()
