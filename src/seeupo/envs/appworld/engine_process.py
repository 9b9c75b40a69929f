"""Fork server of AppWorld's engine: `python -m seeupo.envs.appworld.engine_process`.

It loads AppWorld once (seconds) and then forks two processes for each episode (milliseconds): one owns the apps and
their databases (`apps_process`), the other runs model code and can only call their APIs (`code_process`). So no episode
can affect the memory of the next, and no code reaches a database. Commands are read from stdin and answered with JSON,
one per line: `start` with JSON ends the last episode and starts one, `execute` with JSON runs code, `state` asks for
the changes, `stop` ends the episode.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from seeupo.envs.appworld import apps_process, code_process
from seeupo.envs.appworld.engine_client import PR_SET_DUMPABLE, NoOutput
from seeupo.envs.pool.watchdog import processes

PR_SET_CHILD_SUBREAPER = 36
LONGEST_QUEUE = 16
KILL_SECONDS = 20.0
SETUP_SECONDS = 60.0
STATE_SECONDS = 20.0
LARGEST_OUTPUT = 16 * 2**20
MEMORY_BYTES = 2 * 2**30
"""Address space of each of the two processes of an episode."""


def load() -> None:
    """Initialize what every episode needs, before forking. No thread may be running afterwards."""
    import appworld.environment  # noqa: F401 needed by the forks
    import fastapi.testclient  # noqa: F401 needed by the forks
    import freezegun
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


def fork(work: Callable[[], None], *keep: socket.socket) -> None:
    """Run something in a child process, which keeps no open files but the given sockets."""
    if os.fork():
        return
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        kept = [connection.fileno() for connection in keep]
        for descriptor in range(3, 1024):
            if descriptor not in kept:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MEMORY_BYTES, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        work()
    finally:
        os._exit(1)


class Episode:
    """The two processes of an episode.

    Attributes:
        answer: Answer to the `start` command: the description of the task, or an error.
    """

    def __init__(self, task: str, *, execution_seconds: int, hidden: Path | None) -> None:
        address = str(Path(os.environ["APPWORLD_ROOT"]) / "apis")
        self.apps, apps_end = socket.socketpair()
        self.code, code_end = socket.socketpair()
        code_options: dict[str, Any] = {"address": address, "execution_seconds": execution_seconds, "hidden": hidden}
        with apps_end, code_end, socket.socket(socket.AF_UNIX) as calls:
            calls.bind(address)
            calls.listen(LONGEST_QUEUE)
            fork(partial(apps_process.serve, task, apps_end, calls), apps_end, calls)
            fork(partial(code_process.serve, task, code_end, **code_options), code_end)
        self.answer: dict[str, Any] = json.loads(read_line(self.apps, SETUP_SECONDS))
        if "error" not in self.answer:
            read_line(self.code, SETUP_SECONDS)  # it can run code now

    def execute(self, code: str, *, seconds: float) -> dict[str, Any]:
        """Run code and return its output. The process may have been taken over, so its answer is hostile."""
        answer = json.loads(ask(self.code, json.dumps(code).encode() + b"\n", seconds, most=LARGEST_OUTPUT))
        if isinstance(answer, dict) and isinstance(answer.get("output"), str):
            return {"output": answer["output"]}
        raise NoOutput("what the code has printed or raised cannot be shown")

    def state(self) -> dict[str, Any]:
        """Return the state of the apps. Nothing that model code has written or patched takes part in this."""
        state: dict[str, Any] = json.loads(ask(self.apps, b"?", STATE_SECONDS))
        return state

    def close(self) -> None:
        self.apps.close()
        self.code.close()


def ask(process: socket.socket, request: bytes, seconds: float, *, most: int | None = None) -> bytes:
    """Send a request to a process of the episode and return its answer."""
    process.settimeout(seconds)
    process.sendall(request)
    return read_line(process, seconds, most=most)


def read_line(process: socket.socket, seconds: float, *, most: int | None = None) -> bytes:
    """Return a line that a process sends in time; raise `OSError`, or `NoOutput` if it has more than `most` bytes."""
    received = bytearray()
    deadline = time.monotonic() + seconds
    while not received.endswith(b"\n"):
        if most is not None and len(received) > most:
            raise NoOutput(f"the code has printed more than {most} bytes")
        process.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = process.recv(1 << 20)
        if not chunk:
            raise ConnectionError("the process has ended")
        received += chunk
    return bytes(received)


def kill_all() -> None:
    """Kill all processes of an episode, until there is no child left to wait for."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        _, *family = processes(os.getpid())  # orphans included, because this process is their subreaper
        for process in family:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)
    sys.exit("the processes of an episode cannot be killed")  # the pool then replaces the worker


def main() -> None:
    hidden = Path(sys.argv[1]) if sys.argv[1] else None
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    load()
    libc.prctl(PR_SET_DUMPABLE, 0)  # model code runs as the same user: keep it out of this process's memory
    episode: Episode | None = None
    for line in sys.stdin:
        command, _, options = line.strip().partition(" ")
        answer: dict[str, Any] = {}
        try:
            if command == "execute" and episode is not None:
                answer = episode.execute(**json.loads(options))
            elif command == "state" and episode is not None:
                answer = episode.state()
            else:
                kill_all()
                if episode is not None:
                    episode.close()
                if command == "start":
                    episode = Episode(**json.loads(options), hidden=hidden)
                    answer = episode.answer
        except NoOutput as error:
            answer = {"no_output": str(error)}
        except (OSError, ValueError, RecursionError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    kill_all()


if __name__ == "__main__":
    main()
