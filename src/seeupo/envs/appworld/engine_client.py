"""Client of an episode's engine: start it, send requests over HTTP on the loopback interface, and stop it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import seeupo
from seeupo.envs.appworld.scratch import SCRATCH, clear, in_sandbox

ANSWER_SECONDS = 90.0
LOST = 70
PR_SET_DUMPABLE = 4
LARGEST_ANSWER = 16 * 2**20
LONGEST_HEAD = 1 << 16
HEAD = re.compile(
    rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n(?:[^\r\n]+\r\n)*?content-length: (\d{1,12})\r\n(?:[^\r\n]+\r\n)*\r\n"
)


class EngineLost(Exception):
    """The engine has died, hangs, or violates its protocol."""


class NoAnswer(EngineLost):
    """The engine runs, but cannot return a result. The message is part of the observation."""


class Engine:
    """Runs fresh processes for each episode, one episode at a time.

    Data from a server that has run model code is hostile: it is read up to a limit of time and size, and checked.
    """

    def __init__(self, data: Path, *, memory_mb: int) -> None:
        self.data = data
        self.memory_mb = memory_mb
        self.source: subprocess.Popen[str] | None = None
        self.port = 0
        # AppWorld expects its data and its output in one folder; the data itself is read-only.
        self.root = Path(tempfile.mkdtemp(prefix="appworld-"))

    def start(self, task: str, *, execution_seconds: int) -> dict[str, Any]:
        """Start the processes of an episode and return the description of its task.

        The previous episode, its processes and its files are removed first.
        """
        if self.source is not None:
            self._command("stop")
        self._clear()
        if self.source is None:
            self.source = self._load()
        options = json.dumps({"task": task, "execution_seconds": execution_seconds})
        answer = self._command(f"start {options}")
        if "error" in answer:
            raise EngineLost(answer["error"])
        self.port = answer["port"]
        described: dict[str, Any] = answer["task"]
        return described

    def state(self) -> dict[str, Any]:
        """Return the state of the apps: `completed`, and `changes` as lines for each app.

        It comes from the process that owns the databases. No model code runs there.
        """
        answer = self._command("state")
        if "error" in answer:
            raise EngineLost(answer["error"])
        return answer

    def stop(self) -> None:
        """Stop the episode and all processes that it started. `start` detects an engine that is lost."""
        if self.source is not None and self.source.poll() is None:
            self._command("stop")

    def post(self, path: str, body: dict[str, Any], *, seconds: float) -> Any:
        """Return the `output` of the server's answer; raise `EngineLost` or `NoAnswer`."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            status, answer = self._exchange(head.encode() + content, time.monotonic() + seconds)
            if status != b"200":
                raise NoAnswer("what the code has printed or raised cannot be shown")
            return json.loads(answer)["output"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise EngineLost(f"{path}: {type(error).__name__}: {error}") from None

    def _exchange(self, request: bytes, deadline: float) -> tuple[bytes, bytes]:
        """Return status and content of the answer. Uses no thread, because model code may have used up all of them."""
        received = bytearray()
        with socket.create_connection(("127.0.0.1", self.port), timeout=deadline - time.monotonic()) as connection:
            connection.sendall(request)
            while not (match := HEAD.match(received)) or len(received) < match.end() + int(match[2]):
                if match and int(match[2]) > LARGEST_ANSWER:
                    raise NoAnswer(f"the code has printed more than {LARGEST_ANSWER} bytes")
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                chunk = connection.recv(1 << 20)
                if not chunk or time.monotonic() > deadline or (not match and len(received) > LONGEST_HEAD):
                    raise EngineLost("the answer has no end")
                received += chunk
        return bytes(match[1]), bytes(received[match.end() :])

    def _clear(self) -> None:
        """Remove all written files, so that no information passes between episodes, and set up the root again."""
        try:
            for place in SCRATCH if in_sandbox() else [self.root]:
                clear(place)
            self.root.mkdir(exist_ok=True)
            (self.root / "data").symlink_to(self.data)
        except (OSError, RecursionError) as error:
            give_up(f"the files of an episode cannot be removed: {error}")

    def _load(self) -> subprocess.Popen[str]:
        # Model code runs as the same user: keep it out of this process's memory and file descriptors.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
        places = {
            "APPWORLD_ROOT": str(self.root),
            "APPWORLD_CACHE": str(self.root / "cache"),
            "HOME": str(self.root),
            "IPYTHONDIR": str(self.root / "ipython"),
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",  # the order of sets is visible to the model
            "PYTHONPATH": str(Path(seeupo.__file__).parent.parent),
            "TZ": "UTC",
        }
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "seeupo.envs.appworld.engine_process"),
                str(self.memory_mb * 2**20),
                str(self.data) if in_sandbox() else "",
            ],
            env=places,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _command(self, command: str) -> dict[str, Any]:
        """Return the engine process's answer. Without one, an episode's processes can no longer be found and killed."""
        assert self.source is not None
        assert self.source.stdin is not None
        assert self.source.stdout is not None
        line = ""
        with contextlib.suppress(OSError):
            self.source.stdin.write(f"{command}\n")
            self.source.stdin.flush()
            ready, _, _ = select.select([self.source.stdout], [], [], ANSWER_SECONDS)
            line = self.source.stdout.readline() if ready else ""
        if not line:
            give_up("AppWorld's engine process has ended or does not answer")
        answer: dict[str, Any] = json.loads(line)
        return answer


def give_up(reason: str) -> NoReturn:
    """Exit, because this process must not host another episode. The pool starts a fresh worker."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(LOST)
