"""Fixture that installs BFCL once, in the cache folder."""

import pytest

from seeupo.envs.install import install
from seeupo.envs.registry import EnvSpec, lookup


@pytest.fixture(scope="session")
def bfcl() -> EnvSpec:
    spec = lookup("bfcl")
    install(spec)
    return spec
