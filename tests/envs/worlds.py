"""What tests of the pool and its parts start from: the toy environment as a spec, with and without a sandbox."""

import os
import signal
import time
from pathlib import Path

import pytest

from seeupo.envs.pool.sandbox import Bubblewrap, Limits, find_bubblewrap
from seeupo.envs.registry import EnvSpec

TOY = EnvSpec(name="toy", factory="envs.toy:ToyFactory", limits=Limits(memory_mb=512))
HAS_SANDBOX = isinstance(find_bubblewrap(), Bubblewrap)

needs_sandbox = pytest.mark.skipif(not HAS_SANDBOX, reason=f"no sandbox here: {find_bubblewrap()}")
everywhere = pytest.mark.parametrize(
    "unsandboxed", [pytest.param(False, marks=needs_sandbox, id="sandbox"), pytest.param(True, id="no-sandbox")]
)


def quick(**limits):
    """Limits for a call that is going to hang: long enough for anything else on a busy machine."""
    return Limits(call_seconds=3.0, memory_mb=512, **limits)


def children(pid=None):
    """All processes below one, this one by default."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    below = {pid or os.getpid()}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {pid or os.getpid()}


def alive(pids):
    """Those that still run; what was killed a moment ago is given time to go."""
    for _ in range(200):
        running = {pid for pid in pids if is_running(pid)}
        if not running:
            return set()
        time.sleep(0.05)
    return running


def is_running(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid):
    """As the kernel does when memory runs out, or a person by mistake."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
