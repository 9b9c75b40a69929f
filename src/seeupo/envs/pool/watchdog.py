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
from typing import Literal

from seeupo.envs.pool.sandbox import SCRATCH_FOLDERS, Limits

INTERVAL_SECONDS = 0.25
STOPPED_CHECKS = 8
"""Number of checks in a row after which a stopped worker is killed: two seconds."""
FILE_BYTES = 1024
"""Kernel memory of a file in the scratch space, even if it is empty."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reason why a worker has to be killed. `cause` is the value of a `FailureCause`."""

    cause: Literal["memory", "stopped"]
    reason: str


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

    def __init__(self, pid: int, limits: Limits, condemn: Callable[[Verdict], None], *, sandboxed: bool) -> None:
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

    def check(self) -> Verdict | None:
        """Look at the processes once; return a verdict if the worker has to be killed."""
        family = processes(self.pid)
        worker = find_worker(family) if self.sandboxed else None
        # Bubblewrap and the worker itself; what the environment does with its own processes is its own business.
        own = [process for process in family if process.pid == self.pid or process.inner == 1 or process == worker]
        self.stops = self.stops + 1 if any(process.stopped for process in own) else 0
        if self.stops >= STOPPED_CHECKS:
            return Verdict("stopped", "the worker was stopped (SIGSTOP) and killed")
        scratch = scratch_sizes(worker) if worker is not None else []
        if any(size.bytes > self.limits.scratch_mb * 2**20 for size in scratch):
            return Verdict("memory", f"more than {self.limits.scratch_mb} MB in the scratch space")
        files = sum(size.bytes + size.files * FILE_BYTES for size in scratch)
        limit = self.limits.total_mb
        # Shared memory is divided among the processes only if it matters, because that takes the kernel longer.
        if limit is not None and files + sum(process.resident for process in family) > limit * 2**20:
            used = files + sum(map(proportional, family))
            if used > limit * 2**20:
                return Verdict("memory", f"its processes used {used >> 20} MB together; the limit is {limit} MB")
        return None

    def _run(self) -> None:
        while not self.done.wait(INTERVAL_SECONDS):
            if (verdict := self.check()) is not None:
                self.condemn(verdict)
                return


def processes(pid: int) -> list[Process]:
    """Return a process and its descendants, as far as they still run."""
    found: list[Process] = []
    queue = [pid]
    while queue:
        number = queue.pop()
        if (process := read_process(number)) is not None:
            found.append(process)
            # A process may end at any time, and a thread may be created while the others are listed.
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{number}/task").iterdir():
                    with contextlib.suppress(OSError):
                        queue += map(int, (thread / "children").read_text().split())
    return found


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
    return min((process for process in family if process.parent == first), key=lambda each: each.inner, default=None)


def proportional(process: Process) -> int:
    """Return the bytes that a process uses, with its share of shared memory; all of it if the kernel does not tell."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        # It may have ended since it was listed. Hundreds of forks end together when an episode is closed.
        now = read_process(process.pid)
        return 0 if now is None else now.resident
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), process.resident)


@dataclass(frozen=True, slots=True)
class Size:
    """Size and number of the files in a folder of the scratch space."""

    bytes: int
    files: int


def scratch_sizes(worker: Process) -> list[Size]:
    """Return the sizes of a sandbox's scratch folders, which are file systems of their own, held in memory."""
    sizes = []
    for folder in SCRATCH_FOLDERS:
        inside = Path(f"/proc/{worker.pid}/root{folder}")
        with contextlib.suppress(OSError):
            # While the sandbox is set up, the path may still lead to the host's folder.
            if inside.stat().st_dev != Path(folder).stat().st_dev:
                disk = os.statvfs(inside)
                sizes.append(Size((disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_files - disk.f_ffree))
    return sizes
