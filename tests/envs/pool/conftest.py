import pytest

from envs.worlds import RESET, alive, children, launch
from seeupo.envs.pool.worker import Worker


@pytest.fixture
def started():
    """Start workers with an episode in each, and check that no process or file is left of them."""
    workers = []

    def start(unsandboxed, **changes):
        worker = Worker(launch(unsandboxed, **changes))
        workers.append(worker)
        worker.load()
        worker.call(RESET)
        return worker

    before = children()
    yield start
    for worker in workers:
        worker.discard()
        assert not worker.folder.exists()
    assert not alive(children() - before)
