import os
import socket
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from envs.worlds import (
    HANG_SECONDS,
    RESET,
    alive,
    children,
    every_sandbox,
    everywhere,
    generous,
    kill,
    launch,
    needs_sandbox,
    observation,
    step,
    time_out_hangs,
)
from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool.sandbox import find_bubblewrap
from seeupo.envs.pool.worker import Worker
from seeupo.errors import EnvError


@everywhere
def test_calls_return_answers(started, unsandboxed):
    worker = started(unsandboxed)
    assert worker.call({"op": "splits"}) == ["train", "test"]
    assert observation(worker, "add 2") == "2"
    assert step(worker, "add 1").terminated
    assert worker.call({"op": "score", "session": "1"}) == 1.0
    assert worker.call({"op": "close", "session": "1"}) is None


@everywhere
@pytest.mark.parametrize(
    ("action", "cause", "reason"),
    [
        ("hang", FailureCause.TIMEOUT, f"no answer within {HANG_SECONDS:g} s"),
        ("spin", FailureCause.TIMEOUT, f"no answer within {HANG_SECONDS:g} s"),
        ("exit 7", FailureCause.CRASH, "exited with code 7"),
        ("exit 0", FailureCause.CRASH, "exited with code 0"),
        ("sysexit", FailureCause.CRASH, "asked to exit (3)"),
        ("segfault", FailureCause.CRASH, "the worker"),
        ("memory", FailureCause.MEMORY, "memory limit"),
        ("recurse", FailureCause.RECURSION, "recursion limit"),
        ("huge 20000000", FailureCause.CRASH, "an answer of more than 16 MB"),
        ("raise wrong", FailureCause.RAISED, "ValueError: wrong"),
        ("unsendable", FailureCause.RAISED, "must be a table of JSON values"),
    ],
)
def test_the_cause_of_a_failure_is_identified(started, monkeypatch, unsandboxed, *, action, cause, reason):
    time_out_hangs(monkeypatch)
    worker = started(unsandboxed)
    with pytest.raises(WorkerFailure) as failure:
        step(worker, action)
    assert failure.value.cause is cause
    assert reason in failure.value.reason


@everywhere
def test_a_kill_from_outside_is_identified(started, unsandboxed):
    worker = started(unsandboxed)
    family = {worker.process.pid} | children(worker.process.pid)
    kill(worker.process.pid)
    assert not alive(family)
    with pytest.raises(WorkerFailure) as failure:
        step(worker, "add 1")
    assert failure.value.cause is FailureCause.KILLED


def test_a_signal_without_a_name_is_identified(started):
    worker = started(True, packages=(Path(__file__).parents[1],))
    os.kill(worker.process.pid, 40)  # a real-time signal
    with pytest.raises(WorkerFailure, match="signal 40") as failure:
        step(worker, "add 1")
    assert failure.value.cause is FailureCause.CRASH


@needs_sandbox
def test_a_kill_from_inside_the_sandbox_is_a_crash(started):
    worker = started(False)
    assert observation(worker, "kill -1") == "still here"
    with pytest.raises(WorkerFailure) as failure:
        step(worker, "kill 0")
    assert failure.value.cause is FailureCause.CRASH


@everywhere
def test_prints_do_not_disturb_the_protocol(started, unsandboxed):
    worker = started(unsandboxed)
    assert observation(worker, "print") == "printed"
    assert observation(worker, "input") == repr("")
    assert observation(worker, "add 1") == "1"
    assert len(worker.errors) <= 4000
    with pytest.raises(WorkerFailure, match=r"stderr: .*noise noise"):
        step(worker, "exit")


@everywhere
def test_any_text_survives_the_round_trip(started, unsandboxed):
    worker = started(unsandboxed)
    for text in ("", "\ud800\udfff", "\0\x1b[2J\u2028", "line\nline", "x" * 2_000_000, "é漢🙂"):
        assert observation(worker, f"say {text}") == text


@everywhere
def test_children_are_killed_with_the_worker(started, unsandboxed):
    """They hold all descriptors, so the end of the worker must be detected without the end of its pipe."""
    worker = started(unsandboxed)
    below = children(worker.process.pid)
    assert observation(worker, "fork 3") == "forked"
    forked = children(worker.process.pid) - below
    assert len(forked) == 3
    with pytest.raises(WorkerFailure) as failure:
        step(worker, "exit 5")
    assert failure.value.cause is FailureCause.CRASH
    worker.kill()
    assert not alive(forked)


@everywhere
def test_nothing_is_inherited_from_the_trainer(started, unsandboxed, monkeypatch):
    monkeypatch.setenv("A_SECRET", "x")
    worker = started(unsandboxed)
    environ = step(worker, "look").info["environ"]
    assert "A_SECRET" not in environ
    assert environ["HOME"] != os.environ["HOME"]
    modules = observation(worker, "modules").split()
    assert not {"torch", "numpy", "transformers", "rich", "click"} & set(modules)


@everywhere
def test_hash_seed_is_the_same_in_every_worker(started, unsandboxed):
    """The order of a set would otherwise differ when an episode is repeated."""
    first, second = started(unsandboxed), started(unsandboxed)
    assert observation(first, "hash word") == observation(second, "hash word")


@everywhere
def test_mathematical_libraries_of_a_worker_use_one_thread(started, unsandboxed):
    """Workers share the cores, and threads of OpenMP that wait for a busy core keep another one busy."""
    assert step(started(unsandboxed), "look").info["environ"]["OMP_NUM_THREADS"] == "1"


@everywhere
def test_files_have_a_size_limit(started, unsandboxed):
    worker = started(unsandboxed, limits=generous(file_mb=2))
    assert observation(worker, "fill 1") == "filled"
    assert observation(worker, "fill 4") == "Error: File too large"


@needs_sandbox
def test_the_sandbox_hides_files_users_and_processes(started, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("secret")
    worker = started(False)
    for path in (canary, "/etc/passwd", "/etc/hostname", Path(__file__)):
        assert observation(worker, f"read {path}") == "Error: No such file or directory", path
    seen = step(worker, "look").info
    assert seen["uid"] not in (0, os.getuid())
    assert seen["processes"] == 2  # bubblewrap's and the worker's own


@needs_sandbox
def test_the_sandbox_is_read_only_except_for_its_own_tmp(started, tmp_path):
    worker = started(False)
    name = f"seeupo-{uuid.uuid4()}"
    for folder in ("/", "/usr", "/etc", tmp_path, Path(__file__).parent, sys.prefix):
        path = Path(folder) / name
        is_refused = observation(worker, f"write {path}").startswith("Error: ")
        # This interpreter may be below /tmp; its parent folders are then in the sandbox's own /tmp.
        assert is_refused or path.is_relative_to("/tmp"), path
        assert not path.exists()
    assert observation(worker, f"write /tmp/{name}") == "written"
    assert not Path("/tmp", name).exists()


@every_sandbox
def test_every_kind_of_sandbox_is_tight(started, sandbox, tmp_path):
    """Root's workers change to another user; those of other users are in a user namespace, where they own `/`."""
    worker = started(False, sandbox=sandbox)
    for folder in ("/", "/etc", "/dev", "/dev/pts", "/proc", tmp_path, sys.prefix):
        path = Path(folder) / f"seeupo-{uuid.uuid4()}"
        is_refused = observation(worker, f"write {path}").startswith("Error: ")
        # This interpreter may be below /tmp; its parent folders are then in the sandbox's own /tmp.
        assert is_refused or path.is_relative_to("/tmp"), path
        assert not path.exists(), path
    assert step(worker, "look").info["uid"] not in (0, os.getuid())
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert observation(worker, f"network {server.getsockname()[1]}") == "refused"


@every_sandbox
def test_a_sandboxed_worker_has_no_capabilities(started, sandbox):
    text = observation(started(False, sandbox=sandbox), "read /proc/self/status")
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"  # filtered


@every_sandbox
def test_a_sandboxed_worker_inherits_no_files_of_the_trainer(started, sandbox):
    """Only the ends of its own pipes, and what it opened itself."""
    opened = step(started(False, sandbox=sandbox), "files").info["files"]
    assert all(name.startswith("pipe:") or name in ("/dev/null", "gone") for name in opened), opened


@needs_sandbox
def test_the_sandbox_limits_its_scratch_space(started):
    if not find_bubblewrap().limits_scratch:
        pytest.skip("this bubblewrap cannot limit the size of /tmp")
    worker = started(False, limits=generous(scratch_mb=3))
    assert observation(worker, "fill 5") == "Error: No space left on device"


@needs_sandbox
def test_the_sandbox_limits_the_number_of_processes(started):
    if os.getuid() == 0 and not find_bubblewrap().drops_user:
        pytest.skip("the kernel does not limit root")
    worker = started(False, limits=generous(processes=10))
    assert 1 <= int(observation(worker, "swarm 40")) <= 10


@everywhere
def test_only_the_sandbox_has_no_network(started, unsandboxed):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        expected = "connected" if unsandboxed else "refused"
        assert observation(started(unsandboxed), f"network {port}") == expected


@everywhere
def test_a_worker_dies_with_its_trainer(unsandboxed, monkeypatch, tmp_path):
    """Also when the trainer is killed while the worker hangs. A sandboxed one has no folder on the host."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reader, writer = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        try:
            worker = Worker(launch(unsandboxed, limits=generous()))
            worker.load()
            worker.call(RESET)
            os.write(writer, str(worker.process.pid).encode() + b"\n")
            step(worker, "hang")
        finally:
            os._exit(1)
    os.close(writer)
    pid = int(os.read(reader, 20))
    family = {pid} | children(pid)
    kill(trainer)
    os.waitpid(trainer, 0)
    os.close(reader)
    survivors = alive(family)
    for pid in survivors:
        kill(pid)
    assert not survivors
    assert unsandboxed or not list(tmp_path.iterdir())


@everywhere
@pytest.mark.parametrize(
    ("note", "start_seconds", "error", "message"),
    [
        ("refuse", 600, EnvError, "the data is missing; fetch it"),
        ("raise", 600, WorkerFailure, "RuntimeError: the factory is broken"),
        ("hang", 1, WorkerFailure, "no answer within 1 s"),
        (5, 600, EnvError, "option note=5: expected str or None"),
    ],
)
def test_a_factory_that_cannot_be_loaded_is_an_error(unsandboxed, note, start_seconds, error, message):
    limits = generous(start_seconds=start_seconds)
    worker = Worker(launch(unsandboxed, options={"note": note}, limits=limits))
    try:
        with pytest.raises(error, match=message):
            worker.load()
    finally:
        worker.discard()


def test_a_worker_that_outlives_its_sandbox_is_not_used(monkeypatch):
    """Bubblewrap may be killed before it has tied the worker to itself; the worker answers nevertheless."""
    worker = Worker(launch(True))
    kill(worker.process.pid)
    os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(worker, "call", lambda *_, **__: None)
    with pytest.raises(WorkerFailure) as failure:
        worker.load()
    assert failure.value.cause is FailureCause.KILLED
    worker.discard()


def test_a_missing_interpreter_is_an_error():
    with pytest.raises(EnvError, match="could not be started"):
        Worker(launch(True, python=Path("/nowhere/python")))
