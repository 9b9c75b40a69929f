import pytest


@pytest.fixture(scope="session")
def two_ranks(ray_on_this_machine):
    """Two ranks that many engines use one after another, because processes take seconds to start."""
    from seeupo.distributed.rank_group import RankGroup

    group = RankGroup(2, call_seconds=300)
    yield group
    group.close()
