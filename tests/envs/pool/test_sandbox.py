import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from envs.worlds import TOY, needs_sandbox
from seeupo.envs.pool import sandbox
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.pool.sandbox import find_bubblewrap, runtime, warn_unsandboxed
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


def test_runtime_covers_the_interpreter():
    folders = runtime(Path(sys.executable))
    inside = [Path(sys.base_prefix).resolve(), Path(sys.prefix)]
    for needed in inside:
        assert needed.is_relative_to("/usr") or any(needed.is_relative_to(folder) for folder in folders)
    assert Path("/") not in folders


@needs_sandbox
def test_inner_mounts_are_not_hidden_by_outer_ones(tmp_path):
    """A data folder whose answers are replaced by another mount."""
    for name in ("data/answers", "nothing"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/task").write_text("task")
    (tmp_path / "data/answers/answer").write_text("answer")
    mounts = {tmp_path / "data/answers": tmp_path / "nothing", tmp_path / "data": tmp_path / "data"}
    program = ["/bin/sh", "-c", f"cd {tmp_path}/data && ls . answers"]
    done = subprocess.run(
        find_bubblewrap().command(program, read_only=mounts, scratch_mb=1), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [".:", "answers", "task", "answers:"]
