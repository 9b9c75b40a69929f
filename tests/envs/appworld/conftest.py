"""The real engine on tasks that are made here: fixtures for all tests of AppWorld."""

import subprocess
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
    """A data folder with three tasks, as a download would leave it."""
    root = tmp_path_factory.mktemp("appworld")
    made = subprocess.run(
        [python, Path(__file__).with_name("make_tasks.py"), root], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return root / "data"


@pytest.fixture(scope="session")
def pool(data):
    """One sandboxed worker that runs model code, and one that scores."""
    found = find_bubblewrap()
    if not isinstance(found, Bubblewrap):
        pytest.skip(f"model code is run in a sandbox only: {found}")
    # Tests of endless loops wait for the limit of time.
    options = {"data": str(data), "execution_seconds": 2, "memory_mb": 1536}
    with EnvPool("appworld", options=options, workers=1) as pool:
        yield pool


@pytest.fixture(scope="session")
def tasks(pool):
    """The tasks by the first word of their names: quest, write and erase."""
    return {task.id[:5]: task for split in pool.splits for task in pool.tasks(split)}


@pytest.fixture
def env(pool):
    env = pool.env()
    yield env
    env.close()
