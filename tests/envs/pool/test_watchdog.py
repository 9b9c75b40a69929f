import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envs.worlds import alive, children, every_sandbox, everywhere, generous, observation, step
from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool import watchdog
from seeupo.envs.pool.sandbox import Limits
from seeupo.envs.pool.watchdog import Watchdog, processes, proportional


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


def test_processes_that_are_gone_are_no_problem():
    assert processes(2**22 + 1) == []
    assert Watchdog(2**22 + 1, Limits(), lambda failure: None, sandboxed=True).check() is None


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


def wait_for_state(pid, state):
    """Wait until a signal has arrived; the test's own timeout is the limit."""
    while (found := re.search(r"^State:\t(\w)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]) != state:
        assert found != "Z"
