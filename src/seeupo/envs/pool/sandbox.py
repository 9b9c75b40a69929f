"""Sandbox of a worker: a bubblewrap command line, and resource limits.

A sandboxed worker has no network, sees no other processes and no files except the interpreter, the system's libraries
and the environment's mounts. It runs as an unprivileged user without capabilities and under a filter of system calls,
see `seeupo.envs.pool.seccomp`, and its scratch space is discarded with it.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seeupo.envs.pool.interpreter import SYSTEM_FOLDERS, find_runtime
from seeupo.envs.pool.seccomp import MACHINES, open_filter
from seeupo.errors import EnvError

SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
SYSTEM_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""What bubblewrap leaves writable for root in a user namespace, which owns these files."""
SCRATCH_FOLDERS = ("/tmp", "/dev/shm")
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
        total_mb: Resident memory of all processes of the worker together, with the files in its scratch space and the
            buffers of its sockets.
        file_mb: Size of a written file.
        scratch_mb: Size of the sandbox's /tmp, and of its /dev/shm.
        open_files: File descriptors of each process.
        processes: Processes and threads; only in the sandbox, because the kernel counts per user.
        message_mb: Size of one answer.
    """

    call_seconds: float = 30.0
    start_seconds: float = 120.0
    memory_mb: int | None = 2048
    total_mb: int | None = 4096
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
        limits_scratch: Whether this version can limit the size of /tmp. The watchdog does so in any case.
        disables_userns: Whether this version can forbid further user namespaces. The filter does so in any case.
    """

    path: str
    drops_user: bool
    limits_scratch: bool
    disables_userns: bool

    def namespaces(self) -> list[str]:
        """Return arguments that take away the network, other processes and privileges."""
        namespaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        if self.drops_user:
            user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            user = ["--unshare-user", "--uid", str(LAST_USER), "--gid", str(LAST_USER), "--cap-drop", "ALL"]
            user += ["--disable-userns"] if self.disables_userns else []
        return [*namespaces, *user, "--hostname", "worker", "--die-with-parent", "--new-session"]

    def command(
        self,
        program: Sequence[str],
        *,
        mounts: Mapping[Path, Path],
        scratch_mb: int,
        filter_fd: int,
    ) -> list[str]:
        """Return the command that runs a program.

        Args:
            program: Path of an interpreter, whose files are shown, and its arguments.
            mounts: What the program may read: paths in the sandbox -> paths outside.
            scratch_mb: Size of /tmp and of /dev/shm.
            filter_fd: Descriptor from `open_filter`, which the process must inherit.
        """
        runtime = find_runtime(Path(program[0]))
        mounts = {**{path: path for path in runtime.mounts}, **mounts}
        check_mounts(mounts)
        command = [self.path, *self.namespaces(), "--seccomp", str(filter_fd), "--proc", "/proc", "--dev", "/dev"]
        # Shared mappings of this device are memory without an owner. A device in another mount cannot be opened.
        command += ["--ro-bind", "/dev/zero", "/dev/zero"]
        for name in SYSTEM_SETTINGS:
            command += ["--ro-bind-try", name, name]
        for scratch in SCRATCH_FOLDERS:
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
        for folder in sorted({folder for inside in (*mounts, *runtime.links) for folder in inside.parents}):
            if not any(folder.is_relative_to(mount) for mount in mounts):
                command += ["--dir", str(folder)]
        for inside, outside in sorted(mounts.items()):
            command += ["--ro-bind", str(outside), str(inside)]
        for link, target in sorted(runtime.links.items()):
            command += ["--symlink", str(target), str(link)]
        # The worker of an ordinary user owns these two in its namespace, and their size is not limited.
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--", *program]


def check_mounts(mounts: Mapping[Path, Path]) -> None:
    """Refuse to show workers a directory that contains the user's home."""
    home = home_folder()
    for outside in (*mounts.values(), *map(Path, SYSTEM_FOLDERS)):
        if home is not None and home.is_relative_to(outside.resolve()):
            raise EnvError(
                f"{outside} contains your home directory, and workers must not see it. "
                "Move what the environment needs, or its Python, to a directory of its own, or set HOME to another one"
            )


def home_folder() -> Path | None:
    """Return the user's home; None for users without one."""
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


@functools.cache
def find_bubblewrap() -> Bubblewrap | str:
    """Return bubblewrap if a test run succeeds; otherwise the reason why there is no sandbox, and the fix."""
    path = shutil.which("bwrap")
    if path is None:
        return "bubblewrap is not installed (Debian, Ubuntu and Fedora package: bubblewrap)"
    if platform.machine() not in MACHINES:
        return f"there is no filter of system calls for {platform.machine()}; use one of {', '.join(MACHINES)}"
    usage = subprocess.run([path, "--help"], capture_output=True, text=True, check=False).stdout
    problem = ""
    # Some containers allow a sandbox, but not to change the kernel's limit on user namespaces.
    for drops_user, disables_userns in [(True, False), (False, True), (False, False)]:
        if (drops_user and os.getuid() != 0) or (disables_userns and "--disable-userns" not in usage):
            continue
        bubblewrap = Bubblewrap(path, drops_user, limits_scratch="--size" in usage, disables_userns=disables_userns)
        try:
            problem = probe(bubblewrap)
        except EnvError as error:
            return str(error)
        if not problem:
            return bubblewrap
    return f"bubblewrap is installed but cannot create a sandbox ({problem}); user namespaces may be disabled"


def probe(bubblewrap: Bubblewrap) -> str:
    """Start this interpreter in the sandbox and return what went wrong, or an empty string."""
    change = f"os.setgid({FIRST_USER}); os.setuid({FIRST_USER})" if bubblewrap.drops_user else ""
    program = [sys.executable, "-I", "-S", "-c", f"import os; {change}"]
    filter_fd = open_filter()
    try:
        command = bubblewrap.command(program, mounts={}, scratch_mb=1, filter_fd=filter_fd)
        process = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=(filter_fd,))
    finally:
        os.close(filter_fd)
    return "" if process.returncode == 0 else process.stderr.strip()[-300:] or f"exit code {process.returncode}"


@functools.cache
def warn_unsandboxed(why: str) -> None:
    """Warn once per process and reason."""
    warnings.warn(f"environments run without a sandbox, under resource limits only: {why}", stacklevel=3)
