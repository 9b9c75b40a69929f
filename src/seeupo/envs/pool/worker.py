"""Trainer's side of a worker process: start it, call it under a wall-clock limit, kill it, and report why it ended."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import seeupo
from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool.sandbox import FIRST_USER, LAST_USER, Bubblewrap, Limits
from seeupo.envs.pool.seccomp import open_filter
from seeupo.envs.pool.watchdog import Watchdog
from seeupo.envs.pool.wire import WireError, decode, encode, from_json
from seeupo.envs.references import hidden_module
from seeupo.errors import EnvError
from seeupo.utils.cache import cache_folder

IN_SANDBOX = Path("/worker")
"""Folder of the packages in a sandbox. A worker without one has a temporary folder on the host."""
LONGEST_STDERR = 4000
CHUNK = 1 << 16
POLL_SECONDS = 0.2
EXIT_SECONDS = 5.0
"""Time that a process has to exit after it closed its pipes, also on a busy machine."""
SIGNAL_NAMES = {member.value: member.name for member in signal.Signals}
"""Real-time signals have no names."""
EXTERNAL_SIGNALS = {"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT"}
"""Signals that come from outside of a worker."""
REPORTED_CAUSES = {"memory": FailureCause.MEMORY, "recursion": FailureCause.RECURSION, "exit": FailureCause.CRASH}
"""Causes of the errors that a worker reports; `RAISED` for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Settings to start a worker with.

    Attributes:
        python: Interpreter with the benchmark's packages.
        factory: "module:Class" of the factory.
        options: Keyword arguments of the factory.
        packages: Packages and modules of the trainer that the worker imports besides this one. They are linked or
            mounted one by one, so that a worker sees none of the trainer's other packages.
        projects: Directories to import from as well.
        limits: Resource limits.
        mounts: What the worker may read in its sandbox: paths inside -> paths outside.
        sandbox: Sandbox of the worker; None for resource limits only.
    """

    python: Path
    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[Path, ...] = ()
    projects: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)
    mounts: Mapping[Path, Path] = field(default_factory=dict)
    sandbox: Bubblewrap | None = None


class Worker:
    """A process that hosts a factory. One thread creates and calls it; any thread may call `kill`.

    That thread must stay alive: the kernel kills the process when the thread that started it ends.
    """

    def __init__(self, launch: Launch) -> None:
        """Start the process. Call `load` next."""
        self.launch = launch
        self.temporary = None
        self.folder = IN_SANDBOX
        if launch.sandbox is None:
            self.temporary = tempfile.TemporaryDirectory(prefix="seeupo-worker-", ignore_cleanup_errors=True)
            self.folder = Path(self.temporary.name)
        self.errors = bytearray()
        self.answers = bytearray()
        self.requests = 0
        self.ending = threading.Lock()
        self.condemned: WorkerFailure | None = None
        filters = () if launch.sandbox is None else (open_filter(),)
        try:
            self.process = subprocess.Popen(
                self._command(*filters),
                env=self._environment(),
                cwd="/" if self.temporary is None else self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=filters,
            )
        except BaseException as error:
            self._remove_folder()
            if isinstance(error, OSError):
                raise EnvError(f"the worker could not be started: {error}") from None
            raise
        finally:
            for descriptor in filters:
                os.close(descriptor)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin = self.process.stdin
        self.stdout = self.process.stdout
        self.stderr = self.process.stderr
        for stream in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(stream.fileno(), False)
        self.watchdog = Watchdog(self.process.pid, launch.limits, self._condemn, sandboxed=launch.sandbox is not None)
        try:
            self.watchdog.start()
        except RuntimeError as error:
            self.discard()
            raise EnvError(f"the worker's watchdog could not be started: {error}") from None

    def load(self) -> None:
        """Set the limits and load the factory."""
        self.call(self._start(), seconds=self.launch.limits.start_seconds)
        # Bubblewrap that is killed in its first milliseconds may not take the worker with it; the end of stdin does,
        # unless the worker is in a call that hangs.
        if self._exit(wait=False) is not None:
            raise self._ended()
        self.watchdog.loaded = True

    def call(self, request: Mapping[str, Any], *, seconds: float | None = None) -> Any:
        """Return the worker's answer; raise `WorkerFailure` or, for errors that the user can fix, `EnvError`."""
        if self.condemned is not None:  # its process may not have gone yet
            raise self.condemned
        self.requests += 1
        try:
            sent = encode({"id": self.requests, **request})
        except WireError as error:
            raise WorkerFailure(FailureCause.RAISED, f"the request cannot be sent: {error}") from None
        line = self._exchange(sent, self.launch.limits.call_seconds if seconds is None else seconds)
        try:
            reply = decode(line)
            text = from_json(str, reply.get("text", ""), "text")
        except WireError as error:
            raise WorkerFailure(FailureCause.CRASH, f"the worker broke the protocol: {error}") from None
        if reply.get("id") != self.requests:
            raise WorkerFailure(FailureCause.CRASH, "the worker broke the protocol: an answer to another request")
        if "error" not in reply:
            return reply.get("value")
        for inside, outside in self._packages().items():
            text = text.replace(str(inside), str(outside))  # files in errors are named as the user knows them
        if self.launch.sandbox is not None and self.launch.python == Path(sys.executable):
            problem, newline, rest = text.partition("\n")
            text = f"{problem}{hidden_module(reply.get('missing'))}{newline}{rest}"
        if reply["error"] == "usage":
            raise EnvError(*text.split("\n"))
        raise WorkerFailure(REPORTED_CAUSES.get(str(reply["error"]), FailureCause.RAISED), text)

    def kill(self) -> None:
        """Kill the process and all processes that it started; idempotent."""
        self.watchdog.stop()
        with self.ending:
            # The process id cannot be reused before the process is waited for.
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def discard(self) -> None:
        """Kill the worker and release its pipes and folder. Only the thread that calls the worker may do this."""
        self.kill()
        self.stdin.close()
        # The pipe of stderr ends when the last process that holds it has gone.
        deadline = time.monotonic() + EXIT_SECONDS
        while self._drain_errors() and time.monotonic() < deadline:
            select.select([self.stderr], [], [], POLL_SECONDS)
        self.stdout.close()
        self.stderr.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self.temporary is not None:
            self.temporary.cleanup()

    def _condemn(self, failure: WorkerFailure) -> None:
        """Kill the worker for the watchdog's reason, which the next or current call reports."""
        self.condemned = failure
        self.kill()

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Send a line and wait for the answer, draining what the worker prints so that it never blocks."""
        deadline = time.monotonic() + seconds
        unsent = memoryview(line)
        poll = select.poll()
        poll.register(self.stdin, select.POLLOUT)
        poll.register(self.stdout, select.POLLIN)
        poll.register(self.stderr, select.POLLIN)
        while True:
            if self.watchdog.lost:
                raise WorkerFailure(FailureCause.KILLED, "the worker was killed: its watchdog has ended")
            left = deadline - time.monotonic()
            if left <= 0:
                raise WorkerFailure(FailureCause.TIMEOUT, f"no answer within {seconds:g} s")
            events = poll.poll(min(left, POLL_SECONDS) * 1000)
            ready = {descriptor for descriptor, _ in events}
            if self.stderr.fileno() in ready and not self._drain_errors():
                poll.unregister(self.stderr)
            if unsent and self.stdin.fileno() in ready:
                unsent = unsent[self._write(unsent) :]
                if not unsent:
                    poll.unregister(self.stdin)
            if self.stdout.fileno() in ready:
                chunk = os.read(self.stdout.fileno(), CHUNK)
                self.answers += chunk
                if (end := chunk.find(b"\n")) >= 0:
                    size = len(self.answers) - len(chunk) + end + 1
                    reply = bytes(self.answers[:size])
                    del self.answers[:size]
                    return reply
                limit = self.launch.limits.message_mb
                if len(self.answers) > limit * 2**20:
                    raise WorkerFailure(FailureCause.CRASH, f"an answer of more than {limit} MB")
                if not chunk:
                    raise self._ended()
            # Forked children may hold the pipe open after the worker itself has gone.
            if not events and self._exit(wait=False) is not None:
                raise self._ended()

    def _write(self, content: memoryview) -> int:
        try:
            return os.write(self.stdin.fileno(), content)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise self._ended() from None

    def _drain_errors(self) -> bool:
        """Read what was printed, keep the end of it, and return whether more may follow."""
        try:
            while chunk := os.read(self.stderr.fileno(), CHUNK):
                self.errors += chunk
                del self.errors[:-LONGEST_STDERR]
        except BlockingIOError:
            return True
        return False

    def _ended(self) -> WorkerFailure:
        """Return why the process has ended."""
        code = self._exit(wait=True)
        if self.condemned is not None:
            return self.condemned
        if code is None:
            return WorkerFailure(FailureCause.CRASH, f"the worker closed its pipe{self._printed()}")
        name = SIGNAL_NAMES.get(-code, f"signal {-code}")
        if name in EXTERNAL_SIGNALS:
            return WorkerFailure(FailureCause.KILLED, f"the worker was killed ({name})")
        how = f"was terminated by {name}" if code < 0 else f"exited with code {code}"
        return WorkerFailure(FailureCause.CRASH, f"the worker {how}{self._printed()}")

    def _exit(self, *, wait: bool) -> int | None:
        """Return the exit code, or minus the signal, without reaping the process; None while it runs."""
        deadline = time.monotonic() + (EXIT_SECONDS if wait else 0)
        while self.process.returncode is None:
            try:
                status = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # another thread is killing it
                return -signal.SIGKILL
            if status is not None:
                return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.001)
        return self.process.returncode

    def _printed(self) -> str:
        self._drain_errors()
        text = self.errors.decode(errors="replace").strip()
        return f"; stderr: {text}" if text else ""

    def _packages(self) -> dict[Path, Path]:
        """Return the packages of the trainer that the worker imports: paths inside -> paths outside."""
        packages = (Path(seeupo.__file__).parent, *self.launch.packages)
        return {self.folder / "packages" / path.name: path for path in packages}

    def _command(self, filter_fd: int | None = None) -> list[str]:
        launch = self.launch
        program = [str(launch.python), "-s", "-c", "from seeupo.envs.pool.serve import main; main()"]
        packages = self._packages()
        if launch.sandbox is not None and filter_fd is not None:
            return launch.sandbox.command(
                program,
                mounts={**launch.mounts, **packages},
                scratch_mb=launch.limits.scratch_mb,
                filter_fd=filter_fd,
            )
        for name in ("home", "packages"):
            (self.folder / name).mkdir()
        for inside, outside in packages.items():
            inside.symlink_to(outside)
        return program

    def _environment(self) -> dict[str, str]:
        """Return the environment variables. None are inherited; the hash seed is fixed for reproducible episodes."""
        home = "/tmp" if self.launch.sandbox else str(self.folder / "home")
        return {
            "PATH": f"{self.launch.python.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": home,
            "TMPDIR": home,
            "USER": "worker",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONPATH": str(self.folder / "packages"),
            "PYTHONSAFEPATH": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",  # workers share the cores; more threads would wait for one another, spinning
            "SEEUPO_CACHE": str(cache_folder().absolute()),
        }

    def _start(self) -> dict[str, Any]:
        """Return the first request: what the worker needs to restrict itself and to load the factory."""
        launch = self.launch
        limits = launch.limits
        sandbox = launch.sandbox
        drops_user = sandbox is not None and sandbox.drops_user
        return {
            "op": "start",
            "factory": launch.factory,
            "options": dict(launch.options),
            "projects": [str(folder) for folder in launch.projects],
            "user": random.SystemRandom().randint(FIRST_USER, LAST_USER) if drops_user else None,
            "dies_with_parent": sandbox is None,
            "limits": {
                "RLIMIT_AS": limits.memory_mb and limits.memory_mb * 2**20,
                "RLIMIT_FSIZE": limits.file_mb and limits.file_mb * 2**20,
                "RLIMIT_NOFILE": limits.open_files,
                "RLIMIT_NPROC": limits.processes if sandbox else None,
            },
        }
