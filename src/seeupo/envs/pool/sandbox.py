"""What a worker may reach and use: a bubblewrap command line, and the numbers of its limits.

Inside, there is no network, no other process and no file but the interpreter, the system's libraries and what the
environment was given; the user is nobody. All of it is thrown away with the worker.
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
"""The range that systemd sets aside for short-lived users; it exists in containers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one worker may use. None means no limit.

    Attributes:
        call_seconds: wall-clock time of one call: a reset, a step, a score.
        start_seconds: wall-clock time to load the factory, and to list tasks.
        memory_mb: address space of each process.
        cpu_seconds: CPU time of each process over its whole life.
        file_mb: size of a file that is written.
        scratch_mb: size of the sandbox's /tmp.
        open_files: file descriptors of each process.
        processes: processes and threads, counted in the sandbox only: elsewhere the user's others would count.
        message_mb: size of one answer.
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
    """Bubblewrap as it works on this machine.

    Attributes:
        drops_user: the worker takes a user of its own by itself (we are root). Otherwise a user namespace is made.
        limits_scratch: this version can limit the size of /tmp.
    """

    path: str
    drops_user: bool
    limits_scratch: bool

    def namespaces(self) -> list[str]:
        """Arguments for no network, no other processes, no privileges."""
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
        """The command that runs a program with these folders: `read_only` maps places inside to places outside."""
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
        # Outer folders first: a mount hides what was mounted below it before. Folders on the way to a mount are made
        # by name, because bubblewrap by itself would make them for root only.
        for folder in sorted({folder for inside in read_only for folder in inside.parents}):
            if not any(folder.is_relative_to(mount) for mount in read_only):
                command += ["--dir", str(folder)]
        for inside in sorted(read_only):
            command += ["--ro-bind", str(read_only[inside]), str(inside)]
        return [*command, "--remount-ro", "/", "--chdir", "/tmp", "--", *program]


@functools.cache
def find_bubblewrap() -> Bubblewrap | str:
    """Bubblewrap, tried out; or why there is no sandbox on this machine and what to do about it."""
    path = shutil.which("bwrap")
    if path is None:
        return "bubblewrap is not installed (Debian, Ubuntu and Fedora package: bubblewrap)"
    usage = subprocess.run([path, "--help"], capture_output=True, text=True, check=False).stdout
    problem = ""
    for drops_user in [True, False] if os.getuid() == 0 else [False]:
        bubblewrap = Bubblewrap(path, drops_user=drops_user, limits_scratch="--size" in usage)
        change = f"os.setgid({FIRST_USER}); os.setuid({FIRST_USER})" if drops_user else ""
        program = [sys.executable, "-I", "-S", "-c", f"import os; {change}"]
        trial = bubblewrap.command(program, read_only={p: p for p in runtime(Path(sys.executable))}, scratch_mb=1)
        done = subprocess.run(trial, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return bubblewrap
        problem = done.stderr.strip()[-300:]
    return f"bubblewrap is installed, but cannot make a sandbox here ({problem}); user namespaces may be switched off"


@functools.cache
def warn_unsandboxed(why: str) -> None:
    """Once per process."""
    warnings.warn(f"environments run without a sandbox, under resource limits only: {why}", stacklevel=3)


def runtime(python: Path) -> list[Path]:
    """The folders that an interpreter needs besides the system's: its virtual environment and its base."""
    venv = python.parent.parent
    settings = venv / "pyvenv.cfg"
    bases = [python.resolve().parent.parent]
    if settings.exists():
        pairs = (line.partition("=") for line in settings.read_text().splitlines())
        home = {key.strip(): value.strip() for key, _, value in pairs}.get("home")
        bases += [venv] + ([Path(home).parent] if home else [])
    return sorted({base for base in bases if not base.is_relative_to("/usr") and base != Path("/")})
