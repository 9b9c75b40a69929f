"""Watchdog of a worker: kill it if its processes together use too much memory, or if it was stopped.

The kernel limits single processes only, and a call to a stopped process would wait for its whole time limit. A worker
that cannot be watched is killed too. What /proc says about a process is read as bytes, in lines that end with a newline
only: a process chooses its name, in which the kernel escapes newlines but no other line ends.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool.sandbox import SCRATCH_FOLDERS, Limits

INTERVAL_SECONDS = 0.25
STOPPED_CHECKS = 8
"""Number of checks in a row after which a worker that is stopped, or not found, is killed: two seconds."""
FILE_BYTES = 1024
"""Kernel memory of a file in the scratch space, even if it is empty."""
MEMORY = (b"VmRSS", b"VmSwap", b"HugetlbPages")
SHARED_MEMORY = (b"Pss", b"SwapPss", b"Private_Hugetlb", b"Shared_Hugetlb")
GONE = (FileNotFoundError, ProcessLookupError)
"""Errors of reading about a process that has ended. All others mean that it cannot be watched."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a worker.

    Attributes:
        pid: Its number here.
        inner: Its number in its sandbox; the same as `pid` without one.
        parent: Number of its parent here.
        stopped: Whether it was stopped by a signal.
        resident: Bytes of memory that it uses, including those that it shares with other processes.
        thread: Number of a thread that knows its memory: the first thread may have ended before the others.
    """

    pid: int
    inner: int
    parent: int
    stopped: bool
    resident: int
    thread: int


class Watchdog:
    """A thread that watches a worker until the worker ends or has to be killed."""

    def __init__(self, pid: int, limits: Limits, condemn: Callable[[WorkerFailure], None], *, sandboxed: bool) -> None:
        """Create the watchdog; `condemn` is called at most once, in its thread."""
        self.pid = pid
        self.limits = limits
        self.condemn = condemn
        self.sandboxed = sandboxed
        self.loaded = False
        self.stops = 0
        self.misses = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """End the thread at its next check. Any thread may call this, before it waits for the process."""
        self.done.set()

    @property
    def lost(self) -> bool:
        """Whether the thread has ended without a reason and without killing the worker."""
        return not self.done.is_set() and not self.thread.is_alive()

    def check(self) -> WorkerFailure | None:
        """Look at the processes once; return the reason if the worker has to be killed."""
        family = processes(self.pid)
        worker = find_worker(family) if self.sandboxed else None
        # A process that has ended is there until it is waited for. Without /proc, there is no sandbox either.
        self.misses = self.misses + 1 if not family or (self.sandboxed and self.loaded and worker is None) else 0
        if self.misses >= STOPPED_CHECKS and Path("/proc/self/status").exists():
            return WorkerFailure(FailureCause.KILLED, "the worker was killed: /proc does not show its processes")
        # Bubblewrap and the worker itself; the environment may stop its other processes.
        needed = [process for process in family if process.pid == self.pid or process.inner == 1 or process == worker]
        self.stops = self.stops + 1 if any(process.stopped for process in needed) else 0
        if self.stops >= STOPPED_CHECKS:
            return WorkerFailure(FailureCause.STOPPED, "the worker was stopped (SIGSTOP) and killed")
        scratch = scratch_sizes(worker) if worker is not None else []
        if any(size > self.limits.scratch_mb * 2**20 for size in scratch):
            return WorkerFailure(FailureCause.MEMORY, f"more than {self.limits.scratch_mb} MB in the scratch space")
        limit = self.limits.total_mb
        outside = sum(scratch) + (socket_bytes(worker) if worker is not None else 0)
        # Shared memory is divided among the processes only if it matters, because that takes the kernel longer.
        if limit is not None and outside + sum(process.resident for process in family) > limit * 2**20:
            used = outside + sum(map(proportional, family))
            if used > limit * 2**20:
                reason = f"its processes used {used >> 20} MB together; the limit is {limit} MB"
                return WorkerFailure(FailureCause.MEMORY, reason)
        return None

    def _run(self) -> None:
        failure = None
        try:
            while failure is None:
                if self.done.wait(INTERVAL_SECONDS):
                    return
                failure = self.check()
        except BaseException as error:  # whatever it is, the worker must not run without a watchdog
            failure = WorkerFailure(FailureCause.KILLED, f"the worker was killed: its watchdog failed ({error!r})")
        if not self.done.is_set():
            self.condemn(failure)


def processes(pid: int) -> list[Process]:
    """Return a process and its descendants, as far as they still run."""
    family: list[Process] = []
    queue = [pid]
    while queue:
        number = queue.pop()
        if (process := read_process(number)) is not None:
            family.append(process)
            for thread in threads(number):
                with contextlib.suppress(*GONE):
                    queue += map(int, (thread / "children").read_bytes().split())
    return family


def threads(pid: int) -> Iterator[Path]:
    """Yield the folders of a process's threads. It may end, and threads may be created while others are listed."""
    with contextlib.suppress(*GONE):
        yield from Path(f"/proc/{pid}/task").iterdir()


def read_process(pid: int) -> Process | None:
    """Return a process; None if there is none of that number, or no /proc."""
    if (fields := read_fields(Path(f"/proc/{pid}/status"))) is None:
        return None
    thread, resident = pid, sum_of(fields, MEMORY)
    if b"VmRSS" not in fields:  # the process or only its first thread has ended
        for folder in threads(pid):
            if (others := read_fields(folder / "status")) is not None and b"VmRSS" in others:
                thread, resident = int(folder.name), sum_of(others, MEMORY)
                break
    return Process(
        pid,
        inner=int(fields.get(b"NSpid", [b"%d" % pid])[-1]),
        parent=int(fields[b"PPid"][0]),
        stopped=fields[b"State"][0] == b"T",
        resident=resident,
        thread=thread,
    )


def read_fields(file: Path) -> dict[bytes, list[bytes]] | None:
    """Return the words of each line `Name: words` of a file in /proc; None if its process has gone.

    The last line of a name counts: a process cannot replace a field by one in its own name, which comes first.
    """
    try:
        lines = file.read_bytes().split(b"\n")
    except GONE:
        return None
    return {name: value.split() for name, _, value in (line.partition(b":") for line in lines)}


def sum_of(fields: Mapping[bytes, list[bytes]], names: Sequence[bytes]) -> int:
    """Return the sum of fields that are numbers of kilobytes."""
    return sum(int(fields[name][0]) * 1024 for name in names if name in fields)


def find_worker(family: Sequence[Process]) -> Process | None:
    """Return the worker's process in its sandbox: the oldest child of the first one, which is bubblewrap's."""
    first = next((process.pid for process in family if process.inner == 1), None)
    children = [process for process in family if process.parent == first]
    return min(children, key=lambda process: process.inner, default=None)


def proportional(process: Process) -> int:
    """Return the bytes that a process uses, with its share of shared memory; all of it if the kernel does not tell."""
    with contextlib.suppress(PermissionError):
        rollup = read_fields(Path(f"/proc/{process.pid}/task/{process.thread}/smaps_rollup"))
        if rollup is not None and b"Pss" in rollup:
            return sum_of(rollup, SHARED_MEMORY)
    # It may have ended since it was listed. Hundreds of forks end together when an episode is closed.
    now = read_process(process.pid)
    return 0 if now is None else now.resident


def scratch_sizes(worker: Process) -> list[int]:
    """Return the bytes that a sandbox's scratch folders need: they are file systems of their own, held in memory."""
    sizes = []
    for folder in SCRATCH_FOLDERS:
        inside = Path(f"/proc/{worker.pid}/root{folder}")
        # While the sandbox is set up, the path may be refused, or still lead to the host's folder.
        with contextlib.suppress(PermissionError, *GONE):
            if inside.stat().st_dev != Path(folder).stat().st_dev:
                disk = os.statvfs(inside)
                files = disk.f_files - disk.f_ffree
                sizes.append((disk.f_blocks - disk.f_bfree) * disk.f_frsize + files * FILE_BYTES)
    return sizes


def socket_bytes(worker: Process) -> int:
    """Return the bytes that the buffers of a sandbox's sockets can hold, which belong to no process.

    The filter of system calls keeps their sizes at the kernel's defaults, except those of TCP, which the kernel adapts.
    """
    counts = [read_fields(Path(f"/proc/{worker.pid}/net/{name}")) or {} for name in ("sockstat", "sockstat6")]
    if b"sockets" not in counts[0]:
        return 0
    tcp = counts[0][b"TCP"]  # pairs of names and numbers; the memory is that of all sockets of the host
    held = int(tcp[tcp.index(b"mem") + 1]) * os.sysconf("SC_PAGE_SIZE")
    connections = int(tcp[1]) + int(counts[1][b"TCP6"][1] if b"TCP6" in counts[1] else 0)
    settings = Path("/proc/sys/net")
    default = sum(int((settings / f"core/{kind}mem_default").read_bytes()) for kind in "rw")
    most = sum(int((settings / f"ipv4/tcp_{kind}mem").read_bytes().split()[2]) for kind in "rw")
    return int(counts[0][b"sockets"][1]) * default + min(connections * most, held)
