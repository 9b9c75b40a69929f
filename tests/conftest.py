"""One thread per process: tests run in parallel, and sums over several threads differ in the last digits."""

import contextlib
import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# No test may depend on the speed of the machine.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("any machine")

# A shell that runs the tests in the background has them ignore interrupts, and with them all programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def ray_on_this_machine(tmp_path_factory):
    """A Ray cluster of one node for all tests of a process; at its start it writes to a home directory of its own."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'seeupo[cluster]'")
    from seeupo.engines.cluster.ray_cluster import ray_cluster

    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
            stack.enter_context(ray_cluster(None, processes=8))
        yield
