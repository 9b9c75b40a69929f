import pytest

from seeupo.envs.install import installed
from seeupo.envs.registry import EnvSpec, lookup


@pytest.fixture(scope="session")
def textworld() -> EnvSpec:
    spec = lookup("textworld")
    if not installed(spec):
        pytest.skip("TextWorld is not installed; run: seeupo envs install textworld")
    return spec
