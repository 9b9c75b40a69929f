"""Fixtures that run AppWorld's real engine on made-up tasks."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from seeupo.envs.install import installed, interpreter
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.pool.sandbox import Bubblewrap, find_bubblewrap
from seeupo.envs.registry import lookup


@pytest.fixture(scope="session")
def python():
    """AppWorld's own interpreter."""
    spec = lookup("appworld")
    if not installed(spec):
        pytest.skip("appworld is not installed; run: seeupo envs install appworld")
    return interpreter(spec)


@pytest.fixture(scope="session")
def data(python, tmp_path_factory):
    """A data folder with three tasks, laid out like the download."""
    root = tmp_path_factory.mktemp("appworld")
    made = subprocess.run(
        [python, Path(__file__).with_name("make_tasks.py"), root], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return root / "data"


@pytest.fixture(scope="session")
def pool(data):
    """A sandboxed worker that runs model code and one that scores, with limits that a busy machine does not reach."""
    with pool_with_limit(data, execution_seconds=600) as pool:
        yield pool


@pytest.fixture(scope="module")
def impatient_pool(data):
    """A pool with a short time limit, for code that may never end."""
    with pool_with_limit(data, execution_seconds=2) as pool:
        yield pool


def pool_with_limit(data, *, execution_seconds):
    found = find_bubblewrap()
    if not isinstance(found, Bubblewrap):
        pytest.skip(f"model code runs only in a sandbox: {found}")
    limits = replace(lookup("appworld").limits, call_seconds=3600.0, start_seconds=3600.0)
    options = {"data": str(data), "execution_seconds": execution_seconds}
    return EnvPool("appworld", options=options, workers=1, limits=limits)


@pytest.fixture(scope="session")
def tasks(pool):
    """The tasks by the first five letters of their ids: quest, write and erase."""
    return {task.id[:5]: task for split in pool.splits for task in pool.tasks(split)}


@pytest.fixture
def env(pool):
    env = pool.env()
    yield env
    env.close()


@pytest.fixture(scope="session")
def landlock():
    """Skip the test if the kernel cannot hide a folder from a process."""
    program = "from pathlib import Path; from seeupo.envs.appworld.landlock import hide; print(hide(Path('/none')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    if done.stdout.strip() != "True":
        pytest.skip("the kernel has no Landlock")
