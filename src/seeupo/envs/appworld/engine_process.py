"""Fork server of AppWorld's engine: `python -m seeupo.envs.appworld.engine_process`.

It loads AppWorld once (seconds) and then forks two processes for each episode (milliseconds): one owns the apps and
their databases (`apps_process`), the other runs model code and can only call their APIs (`code_process`). So no episode
can affect the memory of the next, and no code reaches a database. Commands are read from stdin and answered with JSON,
one per line: `start` with JSON ends the last episode and starts one, `state` asks for its changes, `stop` ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seeupo.envs.appworld import apps_process, code_process

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
LONGEST_QUEUE = 16
KILL_SECONDS = 20.0
SETUP_SECONDS = 60.0
STATE_SECONDS = 20.0


def load() -> None:
    """Initialize what every server needs, before forking. No thread may be running afterwards."""
    import appworld.serve.environment  # noqa: F401 needed by the forks
    import freezegun
    import uvicorn  # noqa: F401 needed by the forks
    from appworld.apps import build_main_app, get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.common.utils import get_name_to_apis

    apps = tuple(get_all_apps(skip_admin=True))
    build_main_app(tuple(sorted((*apps, "admin"))))
    for app in apps:
        get_name_to_apis(app, ignore_private_apis=True)
    ApiDocCollection.load(load_apps=apps, include_response_schemas=True)
    # The first freeze searches all modules for clocks and caches them.
    with freezegun.freeze_time("2023-01-01"):
        pass


def fork(work: Callable[[], None], *keep: socket.socket, memory_bytes: int) -> None:
    """Run something in a child process, which keeps no open files but the given sockets."""
    if os.fork():
        return
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        first = 3
        for kept in sorted(each.fileno() for each in keep):
            os.closerange(first, kept)
            first = kept + 1
        os.closerange(first, 1024)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        work()
    finally:
        os._exit(1)


class Episode:
    """The two processes of an episode.

    Attributes:
        answer: What the `start` command returns: the port of the code's server and the description of the task.
    """

    def __init__(self, task: str, *, execution_seconds: int, memory_bytes: int, hidden: Path | None) -> None:
        address = str(Path(os.environ["APPWORLD_ROOT"]) / "apis")
        self.apps, apps_end = socket.socketpair()
        code, code_end = socket.socketpair()
        with (
            apps_end,
            code,
            code_end,
            socket.socket(socket.AF_UNIX) as calls,
            socket.create_server(("127.0.0.1", 0), backlog=LONGEST_QUEUE) as listener,
        ):
            calls.bind(address)
            calls.listen(LONGEST_QUEUE)
            fork(lambda: apps_process.serve(task, apps_end, calls), apps_end, calls, memory_bytes=memory_bytes)
            run_code = functools.partial(
                code_process.serve,
                task,
                code_end,
                listener,
                address=address,
                execution_seconds=execution_seconds,
                hidden=hidden,
            )
            fork(run_code, code_end, listener, memory_bytes=memory_bytes)
            apps_end.close()
            code_end.close()
            task_or_error = read_answer(self.apps, SETUP_SECONDS)
            nothing_or_error = read_answer(code, SETUP_SECONDS)
            if "error" in task_or_error or "error" in nothing_or_error:
                self.answer = task_or_error | nothing_or_error
            else:
                self.answer = {"task": task_or_error, "port": listener.getsockname()[1]}

    def state(self) -> dict[str, Any]:
        """Return the state of the apps. Nothing that model code has written or patched takes part in this."""
        try:
            self.apps.sendall(b"?")
        except OSError as error:
            return {"error": f"the apps are gone: {error}"}
        return read_answer(self.apps, STATE_SECONDS)


def read_answer(process: socket.socket, seconds: float) -> dict[str, Any]:
    """Return a process's answer, a line of JSON; an error if there is none in time."""
    received = bytearray()
    deadline = time.monotonic() + seconds
    try:
        while not received.endswith(b"\n"):
            process.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = process.recv(1 << 20)
            if not chunk:
                return {"error": "the process has ended"}
            received += chunk
    except OSError as error:
        return {"error": f"the process does not answer: {error}"}
    answer: dict[str, Any] = json.loads(received)
    return answer


def descendants() -> list[int]:
    """Return all descendants of this process. Orphans are reparented to it, because it is their subreaper."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name may contain anything but is enclosed in parentheses; state and parent follow.
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                )
    below = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted(below - {os.getpid()})


def kill_all() -> None:
    """Kill all processes of an episode, until there is no child left to wait for."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        for process in descendants():
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)
    sys.exit("the processes of an episode cannot be killed")  # the pool then replaces the worker


def main() -> None:
    memory_bytes = int(sys.argv[1])
    hidden = Path(sys.argv[2]) if sys.argv[2] else None
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    load()
    libc.prctl(PR_SET_DUMPABLE, 0)  # model code runs as the same user: keep it out of this process's memory
    episode: Episode | None = None
    for line in sys.stdin:
        command, _, options = line.strip().partition(" ")
        answer: dict[str, Any] = {}
        if command == "state" and episode is not None:
            answer = episode.state()
        else:
            kill_all()
            if command == "start":
                episode = Episode(**json.loads(options), memory_bytes=memory_bytes, hidden=hidden)
                answer = episode.answer
        print(json.dumps(answer), flush=True)
    kill_all()


if __name__ == "__main__":
    main()
