"""An episode's engine as the environment sees it: started, asked over HTTP on the loopback interface, ended."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import seeupo

ANSWER_SECONDS = 90.0
LOST = 70
PR_SET_DUMPABLE = 4
LARGEST_ANSWER = 64 * 2**20
EXPERIMENT = "episode"


class EngineLost(Exception):
    """The engine has died, hangs, or no longer speaks its protocol."""


class Engine:
    """One fresh server process per episode, one episode at a time.

    Everything that comes from a server which has run model code is hostile: it is read up to a limit of time and
    size, and checked.
    """

    def __init__(self, data: Path, *, memory_mb: int) -> None:
        self.data = data
        self.memory_mb = memory_mb
        self.source: subprocess.Popen[str] | None = None
        self.port = 0
        # AppWorld wants its data and its output in one folder; the data itself is read-only.
        self.root = Path(tempfile.mkdtemp(prefix="appworld-"))
        (self.root / "data").symlink_to(data)

    def output(self, task: str) -> Path:
        """Where the server saves the state of a task after each execution."""
        return self.root / "experiments" / "outputs" / EXPERIMENT / "tasks" / task

    def start(self) -> None:
        """A fresh server; the last one and all that it has started are ended."""
        if self.source is None:
            self.source = self._load()
        self.port = int(self._command("start"))
        shutil.rmtree(self.root / "experiments", ignore_errors=True)

    def stop(self) -> None:
        """End the episode's server and all that it has started."""
        if self.source is not None:
            self._command("stop")

    def post(self, path: str, body: dict[str, Any], *, seconds: float) -> Any:
        """The `output` of the server's answer; raises `EngineLost` if there is none within the time."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        # A time-out of the socket starts anew with every byte. This one does not.
        alarm = threading.Timer(seconds, lambda: connection.sock and connection.sock.shutdown(2))
        alarm.daemon = True
        try:
            connection.connect()
            alarm.start()
            text = json.dumps(body).encode()
            connection.request("POST", path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read(LARGEST_ANSWER + 1)
            if response.status != http.client.OK or len(answer) > LARGEST_ANSWER:
                raise EngineLost(f"{path}: status {response.status}, {len(answer)} bytes: {answer[:300]!r}")
            return json.loads(answer)["output"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError) as error:
            raise EngineLost(f"{path}: {type(error).__name__}: {error}") from None
        finally:
            alarm.cancel()
            connection.close()

    def _load(self) -> subprocess.Popen[str]:
        # Model code will run under the same user: keep it out of this process's memory and file descriptors.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
        places = {
            "APPWORLD_ROOT": str(self.root),
            "APPWORLD_CACHE": str(self.root / "cache"),
            "HOME": str(self.root),
            "IPYTHONDIR": str(self.root / "ipython"),
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",  # the order of sets is part of what the model sees
            "PYTHONPATH": str(Path(seeupo.__file__).parent.parent),
            "TZ": "UTC",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "seeupo.envs.appworld.engine_process", str(self.memory_mb * 2**20)],
            env=places,
            cwd=self.root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _command(self, command: str) -> str:
        """The engine process's answer. Without one, what an episode has started can no longer be found and ended.

        So this process must not host another: it ends, its sandbox goes with it, and the pool starts a fresh one.
        """
        assert self.source is not None
        assert self.source.stdin is not None
        assert self.source.stdout is not None
        try:
            self.source.stdin.write(f"{command}\n")
            self.source.stdin.flush()
            ready, _, _ = select.select([self.source.stdout], [], [], ANSWER_SECONDS)
            if ready and (line := self.source.stdout.readline().strip()):
                return line
        except OSError:
            pass
        print("AppWorld's engine process has ended or does not answer", file=sys.stderr, flush=True)
        os._exit(LOST)
