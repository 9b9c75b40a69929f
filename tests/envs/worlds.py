"""The toy environment as a spec and as a worker, with and without a sandbox, and helpers that look at processes."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from envs import toy
from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.sandbox import Bubblewrap, Limits, find_bubblewrap, probe
from seeupo.envs.pool.wire import from_json
from seeupo.envs.pool.worker import Launch, Worker
from seeupo.envs.registry import EnvSpec
from seeupo.types import StepResult

HANG_SECONDS = 0.5
"""Limit of calls that never return. All other calls have a limit that even a busy machine does not reach."""

HAS_SANDBOX = isinstance(find_bubblewrap(), Bubblewrap)

needs_sandbox = pytest.mark.skipif(not HAS_SANDBOX, reason=f"no sandbox here: {find_bubblewrap()}")
everywhere = pytest.mark.parametrize(
    "unsandboxed", [pytest.param(False, marks=needs_sandbox, id="sandbox"), pytest.param(True, id="no-sandbox")]
)


def sandboxes():
    """Return the sandbox of this machine, and for root the one of ordinary users too; skipped with the reason."""
    found = find_bubblewrap()
    kinds = [pytest.param(found, marks=needs_sandbox, id="this user's")]
    if HAS_SANDBOX and found.drops_user:
        other = replace(found, drops_user=False, disables_userns=found.disables_userns or can_disable_userns(found))
        problem = probe(other)
        skip = pytest.mark.skipif(bool(problem), reason=f"no user namespaces here: {problem}")
        kinds.append(pytest.param(other, marks=skip, id="ordinary user's"))
    return kinds


def can_disable_userns(found):
    return not probe(replace(found, drops_user=False, disables_userns=True))


every_sandbox = pytest.mark.parametrize("sandbox", sandboxes())


def generous(**limits):
    return Limits(**{"call_seconds": 600.0, "start_seconds": 600.0, "memory_mb": 512, **limits})


TOY = EnvSpec(name="toy", factory="envs.toy:ToyFactory", limits=generous())

RESET = {"op": "reset", "session": "1", "task": {"id": "t", "split": "s", "kind": "", "seed": 0}, "seed": 0}
RESET["task"]["payload"] = {"target": 3}


def launch(unsandboxed, **changes):
    """Return the settings of a worker that hosts the toy environment."""
    plain = Launch(
        python=Path(sys.executable),
        factory="envs.toy:ToyFactory",
        packages=(Path(toy.__file__).parent,),
        limits=generous(),
        sandbox=None if unsandboxed else find_bubblewrap(),
    )
    return replace(plain, **changes)


def step(worker, text):
    return from_json(StepResult, worker.call({"op": "step", "session": "1", "text": text}), "step")


def observation(worker, text):
    return step(worker, text).messages[0].content


def failing(kind, *, match=None):
    """Expect an `EnvFailure` of this kind."""
    return pytest.raises(EnvFailure, match=match, check=lambda failure: failure.kind is kind)


def worker_pids(pool):
    """Return the process ids of a pool's current workers."""
    slots = [*pool._scheduler.slots, *([] if pool._judge is None else [pool._judge])]
    backends = [slot.backend for slot in slots]
    return [backend.process.pid for backend in backends if isinstance(backend, Worker)]


def quick(**limits):
    """Return limits for a call that is going to hang."""
    return Limits(call_seconds=3.0, memory_mb=512, **limits)


def time_out_hangs(monkeypatch):
    """Give actions that hang a short limit: "hang", "spin", and the first attempt at "once hang FLAG"."""
    call = Worker.call

    def impatient(worker, request, *, seconds=None):
        words = request.get("text", "").split()
        flag = Path(words[2]) if words[:2] == ["once", "hang"] else None
        if words[:1] not in (["hang"], ["spin"]) and (flag is None or flag.exists()):
            return call(worker, request, seconds=seconds)
        try:
            return call(worker, request, seconds=HANG_SECONDS)
        finally:
            if flag is not None:
                flag.touch()  # a slow worker may not have done so yet

    monkeypatch.setattr(Worker, "call", impatient)


def children(pid=None):
    """Return all descendants of a process, by default of this one, except those of a Ray cluster of other tests."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if state != "Z" and b"ray::" not in command and b"/ray/" not in command:
                parents[int(entry.name)] = int(parent)
    below = {pid or os.getpid()}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {pid or os.getpid()}


def alive(pids):
    """Return the processes that still run, after giving killed ones a minute to disappear."""
    for _ in range(1200):
        running = {pid for pid in pids if is_running(pid)}
        if not running:
            return set()
        time.sleep(0.05)
    return running


def is_running(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid):
    """Kill a process, as the kernel does when memory runs out."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
