import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from envs.worlds import (
    TOY,
    alive,
    children,
    every_sandbox,
    everywhere,
    failing,
    generous,
    launch,
    observation,
    step,
)
from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool import watchdog
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.pool.sandbox import Limits
from seeupo.envs.pool.watchdog import (
    MEMORY,
    Watchdog,
    find_worker,
    processes,
    proportional,
    socket_bytes,
    sum_of,
)
from seeupo.envs.pool.worker import Worker
from seeupo.errors import EnvError
from seeupo.types import FailureKind

HOSTILE_NAMES = ["x\vVmRSS:\ty", "x\x1cPPid:\ty", "\x85Vm\nRSS:\u2028", "a) T 1 1 (b", "\f:::\x1d"]
"""With line ends of Python's text, with a newline, and with what ends a name in other files."""


@everywhere
def test_processes_that_use_too_much_memory_together_are_killed(started, unsandboxed):
    """Each of them stays below its own limit."""
    worker = started(unsandboxed, limits=generous(total_mb=400))
    with pytest.raises(WorkerFailure) as failure:
        steps(worker, "gather 8 100 0", "hang")
    assert failure.value.cause is FailureCause.MEMORY
    assert "the limit is 400 MB" in failure.value.reason


@everywhere
def test_shared_memory_counts_once(started, unsandboxed):
    worker = started(unsandboxed, limits=generous(total_mb=400))
    assert observation(worker, "gather 8 1 100") == "gathered"
    assert sum(process.resident for process in processes(worker.process.pid)) > 800 * 2**20
    assert worker.watchdog.check() is None
    assert observation(worker, "add 1") == "1"


@everywhere
def test_a_worker_is_watched_between_calls(started, unsandboxed):
    worker = started(unsandboxed, limits=generous(total_mb=400))
    with contextlib.suppress(WorkerFailure):  # the check may come before the answer
        step(worker, "gather 5 100 0")
    assert not alive({worker.process.pid})
    with pytest.raises(WorkerFailure) as failure:
        step(worker, "add 1")
    assert failure.value.cause is FailureCause.MEMORY


@every_sandbox
def test_scratch_space_counts_as_memory(started, sandbox):
    worker = started(False, sandbox=sandbox, limits=generous(total_mb=300, scratch_mb=512, file_mb=512))
    with pytest.raises(WorkerFailure, match="the limit is 300 MB") as failure:
        steps(worker, "fill 350", "hang")
    assert failure.value.cause is FailureCause.MEMORY


@every_sandbox
def test_empty_files_count_too(started, sandbox, monkeypatch):
    monkeypatch.setattr(watchdog, "FILE_BYTES", 2**20)
    worker = started(False, sandbox=sandbox, limits=generous(total_mb=300, scratch_mb=512))
    with pytest.raises(WorkerFailure, match="the limit is 300 MB"):
        steps(worker, "files_of 350", "hang")


@every_sandbox
def test_scratch_space_is_limited_without_the_help_of_bubblewrap(started, sandbox):
    worker = started(False, sandbox=replace(sandbox, limits_scratch=False), limits=generous(scratch_mb=20))
    assert observation(worker, "fill 10") == "filled"
    assert worker.watchdog.check() is None
    with pytest.raises(WorkerFailure, match="more than 20 MB in the scratch space") as failure:
        steps(worker, "fill 40", "hang")
    assert failure.value.cause is FailureCause.MEMORY


@everywhere
def test_a_worker_that_stops_itself_is_noticed(started, unsandboxed):
    """Long before its time limit, which is ten minutes."""
    with pytest.raises(WorkerFailure) as failure:
        step(started(unsandboxed), "stop")
    assert failure.value.cause is FailureCause.STOPPED


@everywhere
def test_a_worker_that_is_stopped_from_outside_is_noticed(started, unsandboxed):
    worker = started(unsandboxed)
    for pid in [worker.process.pid, *children(worker.process.pid)]:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerFailure) as failure:
        step(worker, "add 1")
    assert failure.value.cause is FailureCause.STOPPED


def test_short_stops_and_stopped_children_are_tolerated():
    """A debugger or a job control shell may stop processes."""
    program = "import os, sys, time\nchild = os.fork() or time.sleep(600)\nprint(child, flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        dog = Watchdog(process.pid, Limits(), lambda failure: None, sandboxed=False)
        try:
            os.kill(child, signal.SIGSTOP)
            os.kill(process.pid, signal.SIGSTOP)
            wait_for_state(process.pid, "T")
            wait_for_state(child, "T")
            for _ in range(watchdog.STOPPED_CHECKS - 1):
                assert dog.check() is None
            os.kill(process.pid, signal.SIGCONT)
            wait_for_state(process.pid, "S")
            for _ in range(2 * watchdog.STOPPED_CHECKS):
                assert dog.check() is None
            os.kill(process.pid, signal.SIGSTOP)
            wait_for_state(process.pid, "T")
            failures = [dog.check() for _ in range(watchdog.STOPPED_CHECKS)]
            assert [failure and failure.cause for failure in failures] == [None] * 7 + ["stopped"]
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


@everywhere
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_the_name_of_a_process_stops_no_watchdog(started, unsandboxed, name):
    worker = started(unsandboxed, limits=generous(total_mb=400))
    assert observation(worker, f"name {name.encode().hex()}") == "named"
    known = processes(worker.process.pid)
    assert len(known) == (2 if unsandboxed else 4)
    assert worker.watchdog.check() is None
    with pytest.raises(WorkerFailure, match="the limit is 400 MB"):
        steps(worker, "gather 8 100 0", "hang")


@everywhere
def test_memory_counts_when_the_first_thread_of_its_process_has_ended(started, unsandboxed):
    worker = started(unsandboxed, limits=generous(total_mb=300, memory_mb=2048))
    with pytest.raises(WorkerFailure, match="the limit is 300 MB"):
        steps(worker, "behead 400", "hang")


@every_sandbox
def test_buffers_of_local_sockets_count_as_memory(started, sandbox):
    worker = started(False, sandbox=sandbox, limits=generous(total_mb=None))
    before = owned_by_sockets(worker)
    assert 0 < step(worker, "connect unix 20").info["sent"] <= owned_by_sockets(worker) - before
    with pytest.raises(WorkerFailure, match="the limit is 20 MB"):
        limited(worker, 20)


@every_sandbox
def test_buffers_of_internet_sockets_count_as_memory(started, sandbox):
    worker = started(False, sandbox=sandbox, limits=generous(total_mb=None))
    before = owned_by_sockets(worker)
    sent = step(worker, "connect internet 20").info["sent"]
    assert sent > 20 * 2**16
    # The kernel counts buffers of the same size for payload and overhead, a megabyte per core at a time.
    assert owned_by_sockets(worker) - before > sent / 2


@everywhere
def test_a_worker_is_killed_when_its_watchdog_fails(started, unsandboxed, monkeypatch):
    worker = started(unsandboxed)

    def fail(pid):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(watchdog, "read_process", fail)
    with pytest.raises(WorkerFailure, match=r"its watchdog failed .*Too many open files") as failure:
        step(worker, "hang")
    assert failure.value.cause is FailureCause.KILLED
    assert not alive({worker.process.pid})


def test_files_of_a_process_that_cannot_be_read_are_an_error(monkeypatch):
    """Only those of a process that has gone are not."""

    def fail(path):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        processes(os.getpid())


@everywhere
def test_a_worker_is_killed_when_its_watchdog_has_ended(started, unsandboxed, monkeypatch):
    monkeypatch.setattr(Watchdog, "_run", lambda watchdog: watchdog.ended.wait())
    monkeypatch.setattr(Watchdog, "ended", threading.Event(), raising=False)
    worker = started(unsandboxed)
    assert observation(worker, "add 1") == "1"
    Watchdog.ended.set()
    with pytest.raises(WorkerFailure, match="its watchdog has ended") as failure:
        step(worker, "hang")
    assert failure.value.cause is FailureCause.KILLED


def test_a_worker_does_not_start_without_a_watchdog(monkeypatch):
    before = children()

    def fail(dog):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Watchdog, "start", fail)
    with pytest.raises(EnvError, match="watchdog could not be started: can't start new thread"):
        Worker(launch(True))
    assert not alive(children() - before)


def test_an_episode_whose_watchdogs_fail_is_reported_and_not_scored(monkeypatch):
    with EnvPool(TOY, workers=1, unsandboxed=True) as pool:
        env = pool.env()
        env.reset(pool.tasks("train")[0], seed=0)

        def fail(pid):
            raise ValueError("forged")

        monkeypatch.setattr(watchdog, "read_process", fail)
        with failing(FailureKind.WORKER_LOST, match="its watchdog failed"):
            env.step("hang")


def test_a_worker_that_cannot_be_found_is_killed():
    """Such as without the kernel's lists of children. A process that has ended is there until it is waited for."""
    assert processes(2**22 + 1) == []
    dog = Watchdog(2**22 + 1, Limits(), lambda failure: None, sandboxed=True)
    assert [dog.check() for _ in range(watchdog.STOPPED_CHECKS - 1)] == [None] * (watchdog.STOPPED_CHECKS - 1)
    assert "does not show its processes" in dog.check().reason


@every_sandbox
def test_the_kernel_ends_workers_first_when_memory_runs_out(started, sandbox):
    worker = started(False, sandbox=sandbox)
    observation(worker, "fork 1")
    inner = find_worker(processes(worker.process.pid))
    assert Path(f"/proc/{inner.pid}/oom_score_adj").read_text() == "1000\n"


def test_swapped_and_huge_pages_count():
    fields = {b"VmRSS": [b"1", b"kB"], b"VmSwap": [b"2", b"kB"], b"HugetlbPages": [b"2048", b"kB"], b"VmHWM": [b"9"]}
    assert sum_of(fields, MEMORY) == 2051 * 1024
    assert sum_of({b"State": [b"Z"]}, MEMORY) == 0


def test_processes_that_have_ended_since_they_were_listed_use_no_memory():
    """Both before and after their parent has waited for them."""
    command = [sys.executable, "-c", "import time\nprint(flush=True)\ntime.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        try:
            program.stdout.readline()
            (process,) = processes(program.pid)
            assert proportional(process) > 0
        finally:
            program.kill()
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert process.resident > 0
        assert proportional(process) == 0
        program.wait()
        assert proportional(process) == 0


def steps(worker, *actions):
    """Take actions, of which the last one never ends, so that the watchdog has its time."""
    for action in actions:
        step(worker, action)


def owned_by_sockets(worker):
    return socket_bytes(find_worker(processes(worker.process.pid)))


def limited(worker, total_mb):
    """Check a worker under another limit."""
    dog = Watchdog(worker.process.pid, Limits(total_mb=total_mb), lambda failure: None, sandboxed=True)
    if (failure := dog.check()) is not None:
        raise failure


def wait_for_state(pid, state):
    """Wait until a signal has arrived; the test's own timeout is the limit."""
    while (found := re.search(r"^State:\t(\w)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]) != state:
        assert found != "Z"
