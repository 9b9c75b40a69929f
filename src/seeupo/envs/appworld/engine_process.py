"""Fork server of AppWorld's engine: `python -m seeupo.envs.appworld.engine_process`.

It loads AppWorld once (seconds) and then forks a server for each episode (milliseconds). Model code runs only in the
forks, so no episode can affect the memory of the next. Two commands are read from stdin, one per line: `start` kills
the processes of the last episode, forks a server and prints its port on the loopback interface; `stop` only kills.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
LONGEST_QUEUE = 16
KILL_SECONDS = 20.0


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


def serve(listener: socket.socket, memory_bytes: int) -> NoReturn:
    """Run an episode's server until killed. Of all open files only the listening socket is kept."""
    import uvicorn
    from appworld.serve.environment import app

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.closerange(3, listener.fileno())
    os.closerange(listener.fileno() + 1, 1024)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        # The event loop and parser without extra packages are fast enough: an episode is not many requests.
        config = uvicorn.Config(app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None)
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        os._exit(1)


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
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    load()
    libc.prctl(PR_SET_DUMPABLE, 0)  # model code runs as the same user: keep it out of this process's memory
    for line in sys.stdin:
        kill_all()
        if line.strip() == "start":
            with socket.create_server(("127.0.0.1", 0), backlog=LONGEST_QUEUE) as listener:
                if os.fork() == 0:
                    serve(listener, memory_bytes)
                print(listener.getsockname()[1], flush=True)
        else:
            print("stopped", flush=True)
    kill_all()


if __name__ == "__main__":
    main()
