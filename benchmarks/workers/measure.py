"""Helpers of workers: serve JSON lines, and measure time and peak memory of a call. Standard library only."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def timed(work: Callable[[], None], clock: str) -> dict[str, float]:
    """Return the seconds and the peak resident memory in GiB, including the model."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    started = CLOCKS[clock]()
    work()
    seconds = CLOCKS[clock]() - started
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {"seconds": seconds, "peak_gib": peak / 2**20}
