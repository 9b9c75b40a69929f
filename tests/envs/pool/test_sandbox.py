import os
import subprocess
import venv
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from envs.worlds import TOY, every_sandbox, needs_sandbox, step
from seeupo.envs.pool import sandbox
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.pool.sandbox import check_mounts, find_bubblewrap, warn_unsandboxed
from seeupo.envs.pool.seccomp import open_filter
from seeupo.errors import EnvError


@pytest.fixture
def without_bubblewrap(monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    find_bubblewrap.cache_clear()
    warn_unsandboxed.cache_clear()
    yield
    find_bubblewrap.cache_clear()


def test_model_code_is_refused_without_a_sandbox(without_bubblewrap):
    risky = replace(TOY, runs_model_code=True)
    with pytest.raises(EnvError, match=r"toy executes what the model writes.*package: bubblewrap.*unsandboxed=True"):
        EnvPool(risky)
    with EnvPool(risky, unsandboxed=True) as pool:
        assert pool.splits == ("train", "test")


def test_other_environments_run_with_one_warning(without_bubblewrap):
    with pytest.warns(UserWarning, match="without a sandbox.*bubblewrap"), EnvPool(TOY):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EnvPool(TOY).close()


def test_a_bubblewrap_that_does_not_work_is_reported(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'no permissions to create namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: str(broken))
    find_bubblewrap.cache_clear()
    try:
        assert "cannot create a sandbox (no permissions to create namespace)" in find_bubblewrap()
    finally:
        find_bubblewrap.cache_clear()


@pytest.mark.parametrize("works", [True, False])
def test_user_namespaces_are_disabled_where_that_works(monkeypatch, tmp_path, works):
    """Some containers do not allow it; the filter of system calls remains."""
    script = tmp_path / "bwrap"
    result = 0 if works else 1
    script.write_text(f'#!/bin/sh\necho --disable-userns\ncase "$*" in *--disable-userns*) exit {result};; esac\n')
    script.chmod(0o755)
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: str(script))
    monkeypatch.setattr(sandbox.os, "getuid", lambda: 1000)
    find_bubblewrap.cache_clear()
    try:
        found = find_bubblewrap()
        assert ("--disable-userns" in found.namespaces()) is works
        assert "--unshare-user" in found.namespaces()
    finally:
        find_bubblewrap.cache_clear()


@needs_sandbox
def test_inner_mounts_are_not_hidden_by_outer_ones(tmp_path):
    """A data folder whose answers are replaced by another mount."""
    for name in ("data/answers", "nothing"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/task").write_text("task")
    (tmp_path / "data/answers/answer").write_text("answer")
    mounts = {tmp_path / "data/answers": tmp_path / "nothing", tmp_path / "data": tmp_path / "data"}
    program = ["/bin/sh", "-c", f"cd {tmp_path}/data && ls . answers"]
    done = run_sandboxed(program, mounts=mounts)
    assert done.stdout.split() == [".:", "answers", "task", "answers:"], done.stderr


@pytest.mark.parametrize("mounted", [".", "..", "link"])
def test_a_directory_that_contains_the_home_is_never_mounted(tmp_path, monkeypatch, mounted):
    home = tmp_path / "users" / "me"
    home.mkdir(parents=True)
    (home / "link").symlink_to(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(EnvError, match="contains your home directory"):
        check_mounts({tmp_path / "data": home / mounted})
    (home / "data").mkdir()
    check_mounts({tmp_path / "data": home / "data"})


def test_a_home_in_the_systems_folders_is_not_shown(monkeypatch):
    monkeypatch.setenv("HOME", "/usr/home/me")
    with pytest.raises(EnvError, match=r"/usr contains your home directory.*set HOME"):
        check_mounts({})


@needs_sandbox
@pytest.mark.parametrize("place", [".", ".venvs/one", "project", ".local/share/uv/python/one"])
def test_an_interpreter_in_the_home_shows_nothing_else_of_it(tmp_path, monkeypatch, place):
    """A worker runs with a Python that lies in the home, and cannot read the files beside it."""
    home = tmp_path / "me"
    (home / place).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    venv.create(home / place, with_pip=False, symlinks=True)
    secrets = [home / ".netrc", home / "mail" / "letter", home / place / ".env", home / place / "src" / "code.py"]
    for secret in secrets:
        secret.parent.mkdir(parents=True, exist_ok=True)
        secret.write_text("secret")
    python = home / place / "bin" / "python"
    program = f"import sys; print(sys.prefix); [print(open(p).read()) for p in {list(map(str, secrets))} if exists(p)]"
    done = run_sandboxed([python, "-c", f"from os.path import exists; {program}"])
    assert done.stdout.split() == [str(Path(home / place))], done.stderr


@needs_sandbox
def test_an_interpreter_behind_a_link_in_the_home_is_found(tmp_path, monkeypatch):
    """As uv and pipx do: ~/.local/bin/python leads to an installation; ~/.local/share has other programs' files."""
    home = tmp_path / "me"
    monkeypatch.setenv("HOME", str(home))
    venv.create(home / ".local/share/tools/one", with_pip=False, symlinks=True)
    (home / ".local/share/keys").write_text("secret")
    python = home / ".local/bin/python3"
    python.parent.mkdir()
    python.symlink_to("../share/tools/one/bin/python")
    program = "import os, sys; print(os.listdir(sys.argv[1]), os.listdir(sys.argv[2]))"
    done = run_sandboxed([python, "-c", program, home / ".local/share", home / ".local/bin"])
    assert done.stdout.strip() == "['tools'] ['python3']", done.stderr


def test_the_sandbox_needs_a_known_architecture(monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: "/usr/bin/bwrap")
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "ppc64le")
    find_bubblewrap.cache_clear()
    try:
        assert "no filter of system calls for ppc64le" in find_bubblewrap()
    finally:
        find_bubblewrap.cache_clear()


def run_sandboxed(program, *, mounts=None):
    """Run a program in the sandbox as the pool does."""
    filter_fd = open_filter()
    try:
        command = find_bubblewrap().command(
            list(map(str, program)),
            mounts=mounts or {},
            scratch_mb=1,
            filter_fd=filter_fd,
        )
        return subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=(filter_fd,))
    finally:
        os.close(filter_fd)


@every_sandbox
def test_a_worker_cannot_change_settings_of_the_kernel(started, sandbox):
    """Also the one of root in a user namespace, where the files of /proc/sys belong to the worker's user."""
    assert step(started(False, sandbox=sandbox), "settings").info == {"writable": []}
