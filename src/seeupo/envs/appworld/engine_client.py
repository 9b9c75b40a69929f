"""Client of an episode's engine: start it, run code in it, and stop it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import seeupo
from seeupo.envs.appworld.scratch import SCRATCH, clear, in_sandbox
from seeupo.utils.python_process import SAFE_PATH, python_command

ANSWER_SECONDS = 90.0
CHECK_SECONDS = 1.0
LOST = 70
PR_SET_DUMPABLE = 4


class EngineLost(Exception):
    """The engine has died, hangs, or violates its protocol."""


class NoOutput(EngineLost):
    """The engine works, but the output of the code cannot be shown. The message is part of the observation."""


class Engine:
    """Runs fresh processes for each episode, one episode at a time."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.source: subprocess.Popen[str] | None = None
        # AppWorld expects its data and its output in one folder; the data itself is read-only.
        self.root = Path(tempfile.mkdtemp(prefix="appworld-"))

    def start(self, task: str, *, execution_seconds: int) -> dict[str, Any]:
        """Start the processes of an episode and return the description of its task.

        The previous episode, its processes and its files are removed first.
        """
        if self.source is not None:
            self.command("stop")
        self._clear()
        if self.source is None:
            self.source = self._load()
        return self.command("start", task=task, execution_seconds=execution_seconds)

    def command(self, command: str, **options: Any) -> dict[str, Any]:
        """Return the engine process's answer; raise `EngineLost` or `NoOutput`.

        "execute" runs `code` for at most `seconds` and returns its `output`. "state" returns whether the task is
        `completed`, and the `changes` as lines for each app; it comes from the process that owns the databases, where
        no model code runs. Without an answer, an episode's processes can no longer be found and killed.
        """
        assert self.source is not None
        assert self.source.stdin is not None
        assert self.source.stdout is not None
        line = ""
        with contextlib.suppress(OSError):
            self.source.stdin.write(f"{command} {json.dumps(options)}\n")
            self.source.stdin.flush()
            deadline = time.monotonic() + ANSWER_SECONDS + options.get("seconds", 0)
            while not select.select([self.source.stdout], [], [], CHECK_SECONDS)[0]:
                if time.monotonic() > deadline or is_stopped(self.source.pid):
                    give_up("AppWorld's engine process was stopped or does not answer")
            line = self.source.stdout.readline()
        if not line:
            give_up("AppWorld's engine process has ended or does not answer")
        answer: dict[str, Any] = json.loads(line)
        if "no_output" in answer:
            raise NoOutput(answer["no_output"])
        if "error" in answer:
            raise EngineLost(answer["error"])
        return answer

    def stop(self) -> None:
        """Stop the episode and all processes that it started. `start` detects an engine that is lost."""
        if self.source is not None and self.source.poll() is None:
            self.command("stop")

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
            **SAFE_PATH,
        }
        return subprocess.Popen(
            python_command(
                *("-m", "seeupo.envs.appworld.engine_process"),
                str(self.data) if in_sandbox() else "",
            ),
            env=places,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def is_stopped(child: int) -> bool:
    """Return whether a signal has stopped a child: code that stops the engine must not wait for the time limit."""
    status = os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    return status is not None


def give_up(reason: str) -> NoReturn:
    """Exit, because this process must not host another episode. The pool starts a fresh worker."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(LOST)
