"""Run a command of root as an ordinary user, in a view of the machine in which that user can read this repository.

`.venv/bin/python .ci/as_user.py COMMAND...`. Continuous integration often runs as root, with the interpreter in root's
home, which others cannot read. The view has the system's folders, the interpreter and the repository, all read-only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from seeupo.envs.pool.interpreter import SYSTEM_FOLDERS, find_runtime

REPOSITORY = Path(__file__).resolve().parent.parent
USER = 65534
CHANGE = f"import os, sys; os.setgroups([]); os.setgid({USER}); os.setuid({USER}); os.execv(sys.argv[1], sys.argv[1:])"


def view() -> list[str]:
    """Return the bubblewrap command that sets up the view."""
    command = ["bwrap", "--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc", "--perms", "1777", "--tmpfs", "/tmp"]
    for folder in ("/etc", *SYSTEM_FOLDERS):
        is_link = Path(folder).is_symlink()
        command += ["--symlink", str(Path(folder).readlink()), folder] if is_link else ["--ro-bind-try", folder, folder]
    runtime = find_runtime(Path(sys.executable))
    mounts = sorted({REPOSITORY, *(path for path in runtime.mounts if not path.is_relative_to(REPOSITORY))})
    # Parents that bubblewrap creates itself are accessible to root only.
    for folder in sorted({folder for path in (*mounts, *runtime.links) for folder in path.parents}):
        command += ["--dir", str(folder)]
    for path in mounts:
        command += ["--ro-bind", str(path), str(path)]
    for link, target in runtime.links.items():
        command += ["--symlink", str(target), str(link)]
    command += ["--clearenv", "--setenv", "PATH", os.environ["PATH"], "--setenv", "LANG", "C.UTF-8"]
    command += ["--dir", "/tmp/home", "--setenv", "HOME", "/tmp/home", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"]
    return [*command, "--chdir", str(REPOSITORY), "--", sys.executable, "-I", "-S", "-c", CHANGE]


def main() -> None:
    """Run the command and exit with its code."""
    sys.exit(subprocess.run([*view(), *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    main()
