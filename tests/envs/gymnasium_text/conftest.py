import pytest

from seeupo.envs.install import installed
from seeupo.envs.registry import EnvSpec, lookup


@pytest.fixture(scope="session")
def gem() -> EnvSpec:
    spec = lookup("gem")
    if not installed(spec):
        pytest.skip("GEM is not installed; run: seeupo envs install gem")
    return spec
