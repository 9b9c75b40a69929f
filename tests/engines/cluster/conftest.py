import os

import pytest


@pytest.fixture(scope="session")
def ray_on_this_machine(tmp_path_factory):
    """A Ray cluster of one node for all tests of a process; it writes to a home directory of its own."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'seeupo[cluster]'")
    from seeupo.engines.cluster.ray_cluster import ray_cluster

    home = os.environ.get("HOME")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    try:
        with ray_cluster(None, processes=4):
            yield
    finally:
        if home is not None:
            os.environ["HOME"] = home


@pytest.fixture(scope="session")
def two_ranks(ray_on_this_machine):
    """Two ranks that many engines use one after another, because processes take seconds to start."""
    from seeupo.engines.cluster.rank_group import RankGroup

    group = RankGroup(2, call_seconds=300)
    yield group
    group.close()
