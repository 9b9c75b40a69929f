"""Sandbox of a worker: a bubblewrap command line, and resource limits.

A sandboxed worker has no network, sees no other processes and no files except the interpreter, the system's libraries
and the environment's mounts. It runs as an unprivileged user, and its scratch space is discarded with it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM_FOLDERS = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
FIRST_USER = 61184
LAST_USER = 65519
"""The range that systemd reserves for dynamic users; it exists in containers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of one worker. None means no limit.

    Attributes:
        call_seconds: Wall-clock time of one call: a reset, a step or a score.
        start_seconds: Wall-clock time to load the factory, and to list tasks.
        memory_mb: Address space of each process.
        cpu_seconds: CPU time of each process over its lifetime.
        file_mb: Size of a written file.
        scratch_mb: Size of the sandbox's /tmp.
        open_files: File descriptors of each process.
        processes: Processes and threads; only in the sandbox, because the kernel counts per user.
        message_mb: Size of one answer.
    """

    call_seconds: float = 30.0
    start_seconds: float = 120.0
    memory_mb: int | None = 2048
    cpu_seconds: int | None = None
    file_mb: int | None = 64
    scratch_mb: int = 256
    open_files: int | None = 256
    processes: int | None = 64
    message_mb: int = 16


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """Bubblewrap and its capabilities on this machine.

    Attributes:
        path: Path of the executable.
        drops_user: Whether the worker itself changes to an unprivileged user, because we are root. Otherwise
            bubblewrap creates a user namespace.
        limits_scratch: Whether this version can limit the size of /tmp.
    """

    path: str
    drops_user: bool
    limits_scratch: bool

    def namespaces(self) -> list[str]:
        """Return arguments that take away the network, other processes and privileges."""
        if self.drops_user:
            own = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
            user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            own = ["--unshare-all"]
            user = ["--uid", str(LAST_USER), "--gid", str(LAST_USER), "--cap-drop", "ALL"]
        return [*own, *user, "--hostname", "worker", "--die-with-parent", "--new-session"]

    def command(
        self,
        program: Sequence[str],
        *,
        read_only: Mapping[Path, Path],
        scratch_mb: int,
    ) -> list[str]:
        """Return the command that runs a program; `read_only` maps paths in the sandbox to paths outside."""
        command = [self.path, *self.namespaces(), "--proc", "/proc", "--dev", "/dev"]
        for scratch in ("/tmp", "/dev/shm"):
            size = ["--size", str(scratch_mb * 2**20)] if self.limits_scratch else []
            command += ["--perms", "1777", *size, "--tmpfs", scratch]
        for name in SYSTEM_FOLDERS:
            if Path(name).is_symlink():
                command += ["--symlink", str(Path(name).readlink()), name]
            else:
                command += ["--ro-bind-try", name, name]
        command += ["--dir", "/etc"]
        for name in SYSTEM_FILES:
            command += ["--ro-bind-try", name, name]
        # Outer folders first: a mount hides earlier mounts below it. Parents of a mount are created explicitly, because
        # those that bubblewrap creates are accessible to root only.
        for folder in sorted({folder for inside in read_only for folder in inside.parents}):
            if not any(folder.is_relative_to(mount) for mount in read_only):
                command += ["--dir", str(folder)]
        for inside in sorted(read_only):
            command += ["--ro-bind", str(read_only[inside]), str(inside)]
        return [*command, "--remount-ro", "/", "--chdir", "/tmp", "--", *program]


@functools.cache
def find_bubblewrap() -> Bubblewrap | str:
    """Return bubblewrap if a test run succeeds; otherwise the reason why there is no sandbox, and the fix."""
    path = shutil.which("bwrap")
    if path is None:
        return "bubblewrap is not installed (Debian, Ubuntu and Fedora package: bubblewrap)"
    usage = subprocess.run([path, "--help"], capture_output=True, text=True, check=False).stdout
    problem = ""
    for drops_user in [True, False] if os.getuid() == 0 else [False]:
        bubblewrap = Bubblewrap(path, drops_user=drops_user, limits_scratch="--size" in usage)
        change = f"os.setgid({FIRST_USER}); os.setuid({FIRST_USER})" if drops_user else ""
        program = [sys.executable, "-I", "-S", "-c", f"import os; {change}"]
        command = bubblewrap.command(program, read_only={p: p for p in runtime(Path(sys.executable))}, scratch_mb=1)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return bubblewrap
        problem = done.stderr.strip()[-300:]
    return f"bubblewrap is installed but cannot create a sandbox ({problem}); user namespaces may be disabled"


@functools.cache
def warn_unsandboxed(why: str) -> None:
    """Warn once per process and reason."""
    warnings.warn(f"environments run without a sandbox, under resource limits only: {why}", stacklevel=3)


def runtime(python: Path) -> list[Path]:
    """Return the folders that an interpreter needs besides the system's: its virtual environment and its base."""
    venv = python.parent.parent
    settings = venv / "pyvenv.cfg"
    bases = [python.resolve().parent.parent]
    if settings.exists():
        pairs = (line.partition("=") for line in settings.read_text().splitlines())
        home = {key.strip(): value.strip() for key, _, value in pairs}.get("home")
        bases += [venv] + ([Path(home).parent] if home else [])
    return sorted({base for base in bases if not base.is_relative_to("/usr") and base != Path("/")})
