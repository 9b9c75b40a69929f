"""Watchdog of a worker: kill it if its processes together use too much memory, or if it was stopped.

The kernel limits single processes only, and a call to a stopped process would wait for its whole time limit.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool.sandbox import SCRATCH_FOLDERS, Limits

INTERVAL_SECONDS = 0.25
STOPPED_CHECKS = 8
"""Number of checks in a row after which a stopped worker is killed: two seconds."""
FILE_BYTES = 1024
"""Kernel memory of a file in the scratch space, even if it is empty."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a worker.

    Attributes:
        pid: Its number here.
        inner: Its number in its sandbox; the same as `pid` without one.
        parent: Number of its parent here.
        stopped: Whether it was stopped by a signal.
        resident: Bytes of memory that it uses, including those that it shares with other processes.
    """

    pid: int
    inner: int
    parent: int
    stopped: bool
    resident: int


class Watchdog:
    """A thread that watches a worker until the worker ends or has to be killed."""

    def __init__(self, pid: int, limits: Limits, condemn: Callable[[WorkerFailure], None], *, sandboxed: bool) -> None:
        """Create the watchdog; `condemn` is called at most once, in its thread."""
        self.pid = pid
        self.limits = limits
        self.condemn = condemn
        self.sandboxed = sandboxed
        self.stops = 0
        self.done = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the thread at its next check. Any thread may call this."""
        self.done.set()

    def check(self) -> WorkerFailure | None:
        """Look at the processes once; return the reason if the worker has to be killed."""
        family = processes(self.pid)
        worker = find_worker(family) if self.sandboxed else None
        # Bubblewrap and the worker itself; the environment may stop its other processes.
        needed = [process for process in family if process.pid == self.pid or process.inner == 1 or process == worker]
        self.stops = self.stops + 1 if any(process.stopped for process in needed) else 0
        if self.stops >= STOPPED_CHECKS:
            return WorkerFailure(FailureCause.STOPPED, "the worker was stopped (SIGSTOP) and killed")
        scratch = scratch_sizes(worker) if worker is not None else []
        if any(size > self.limits.scratch_mb * 2**20 for size in scratch):
            return WorkerFailure(FailureCause.MEMORY, f"more than {self.limits.scratch_mb} MB in the scratch space")
        limit = self.limits.total_mb
        # Shared memory is divided among the processes only if it matters, because that takes the kernel longer.
        if limit is not None and sum(scratch) + sum(process.resident for process in family) > limit * 2**20:
            used = sum(scratch) + sum(map(proportional, family))
            if used > limit * 2**20:
                reason = f"its processes used {used >> 20} MB together; the limit is {limit} MB"
                return WorkerFailure(FailureCause.MEMORY, reason)
        return None

    def _run(self) -> None:
        while not self.done.wait(INTERVAL_SECONDS):
            if (failure := self.check()) is not None:
                self.condemn(failure)
                return


def processes(pid: int) -> list[Process]:
    """Return a process and its descendants, as far as they still run."""
    family: list[Process] = []
    queue = [pid]
    while queue:
        number = queue.pop()
        if (process := read_process(number)) is not None:
            family.append(process)
            # A process may end at any time, and a thread may be created while the others are listed.
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{number}/task").iterdir():
                    with contextlib.suppress(OSError):
                        queue += map(int, (thread / "children").read_text().split())
    return family


def read_process(pid: int) -> Process | None:
    """Return a process; None if there is none of that number, or no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return Process(
        pid,
        inner=int(fields.get("NSpid", [str(pid)])[-1]),
        parent=int(fields["PPid"][0]),
        stopped=fields["State"][0] == "T",
        resident=int(fields["VmRSS"][0]) * 1024 if "VmRSS" in fields else 0,
    )


def find_worker(family: Sequence[Process]) -> Process | None:
    """Return the worker's process in its sandbox: the oldest child of the first one, which is bubblewrap's."""
    first = next((process.pid for process in family if process.inner == 1), None)
    children = [process for process in family if process.parent == first]
    return min(children, key=lambda process: process.inner, default=None)


def proportional(process: Process) -> int:
    """Return the bytes that a process uses, with its share of shared memory; all of it if the kernel does not tell."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        # It may have ended since it was listed. Hundreds of forks end together when an episode is closed.
        now = read_process(process.pid)
        return 0 if now is None else now.resident
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), process.resident)


def scratch_sizes(worker: Process) -> list[int]:
    """Return the bytes that a sandbox's scratch folders need: they are file systems of their own, held in memory."""
    sizes = []
    for folder in SCRATCH_FOLDERS:
        inside = Path(f"/proc/{worker.pid}/root{folder}")
        with contextlib.suppress(OSError):
            # While the sandbox is set up, the path may still lead to the host's folder.
            if inside.stat().st_dev != Path(folder).stat().st_dev:
                disk = os.statvfs(inside)
                files = disk.f_files - disk.f_ffree
                sizes.append((disk.f_blocks - disk.f_bfree) * disk.f_frsize + files * FILE_BYTES)
    return sizes
