"""One thread per process: tests run in parallel, and sums over several threads differ in the last digits."""

import contextlib
import os
import signal
from collections import Counter

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
os.environ["OMP_WAIT_POLICY"] = "passive"  # threads of the few tests with several do not spin on busy cores

import pytest
import torch
from hypothesis import HealthCheck, settings

from waiting import wait_until

torch.set_num_threads(1)

# No test may depend on the speed of the machine. `make nightly` tries ten times as many examples.
QUICK = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("quick", QUICK)
settings.register_profile("nightly", QUICK, max_examples=400)
settings.load_profile("quick")

# A shell that runs the tests in the background has them ignore interrupts, and with them all programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
    """Say what was skipped, in one line per reason."""
    reports = terminalreporter.stats.get("skipped", ())
    for reason, count in Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports).most_common():
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}")


HEAD_CPUS = 8


@pytest.fixture(scope="session")
def ray_on_this_machine(tmp_path_factory):
    """A Ray cluster for all tests of a process, of one node to which tests may add others.

    At its start it writes to a home directory of its own. It notices within seconds that a node has died.
    """
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'seeupo[cluster]'")
    import ray
    from ray.cluster_utils import Cluster

    from seeupo.distributed.ray_cluster import worker_environment

    soon = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
            patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
            cluster = Cluster(
                True, head_node_args={"num_cpus": HEAD_CPUS, "include_dashboard": False, "_system_config": soon}
            )
            stack.callback(cluster.shutdown)
            environment = worker_environment(on_this_machine=True)
            ray.init(cluster.address, runtime_env=environment, log_to_driver=False, logging_level="error")
            stack.callback(ray.shutdown)
        yield cluster


@pytest.fixture(scope="session")
def simulated_nodes(ray_on_this_machine):
    """A context manager that adds simulated nodes with some CPUs each, while those of the first node are taken."""
    import ray
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    @contextlib.contextmanager
    def nodes(*cpus):
        cluster = ray_on_this_machine

        def held() -> float:
            groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
            return sum(bundle.get("CPU", 0) for group in groups for bundle in group["bundles"].values())

        # groups that are being removed hold their CPUs for a moment longer
        wait_until(lambda: ray.available_resources().get("CPU", 0) == HEAD_CPUS - held())
        taken = placement_group([{"CPU": HEAD_CPUS - held()}])
        assert taken.wait(30)
        added = [cluster.add_node(num_cpus=count, include_dashboard=False) for count in cpus]
        try:
            # the first node has seen all of them
            wait_until(lambda: ray.available_resources().get("CPU", 0) >= sum(cpus))
            yield added
        finally:
            for node in cluster.worker_nodes & set(added):
                cluster.remove_node(node)
            remove_placement_group(taken)

    return nodes
