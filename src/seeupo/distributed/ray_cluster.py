"""Start or join a Ray cluster and reserve resources in it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from seeupo.errors import TrainingError, first_line

RESERVE_SECONDS = 30.0
"""Time in which the cluster must provide the resources of a run."""
START_SECONDS = 120.0
"""Time limit for an actor to start."""


@contextmanager
def ray_cluster(address: str | None, *, processes: int, own_device: torch.device | None = None) -> Iterator[None]:
    """Join the cluster at an address, or start one on this machine with room for a number of processes.

    A cluster that was started here is stopped at the end. One that this process has already joined is left as it is.
    `own_device` is a GPU that this process trains on; a cluster that is started here does not use it.
    """
    if importlib.util.find_spec("ray") is None:
        raise TrainingError("engine.kind = \"cluster\" needs Ray: pip install 'seeupo[cluster]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {
        "runtime_env": worker_environment(on_this_machine=address is None),
        "log_to_driver": False,
        "logging_level": "error",
    }
    if address is None:
        # CPUs are only a count to Ray. Ranks on CPUs share the cores, so more of them than cores is slow but possible.
        cpus = max(os.cpu_count() or 1, processes)
        options |= {"num_cpus": cpus, "include_dashboard": False, "address": "local"}
    else:
        options |= {"address": address}
    try:
        with _hidden(own_device if address is None else None):
            ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise TrainingError(
            f"engine.address = {address!r}: no Ray cluster can be joined or started there: {first_line(error)}. "
            'Start one with "ray start --head", or leave engine.address out to start one on this machine'
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def worker_environment(*, on_this_machine: bool) -> dict[str, Any]:
    """Return Ray's runtime environment of workers, which import the same modules as this process.

    Those of the current directory are included. Ray puts the path of the interpreter into a shell command as it is, so
    one with a space is quoted here; on other machines the path may be another one.
    """
    environment: dict[str, Any] = {"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}}
    if on_this_machine and (quoted := shlex.quote(sys.executable)) != sys.executable:
        environment["py_executable"] = quoted
    return environment


@contextmanager
def _hidden(device: torch.device | None) -> Iterator[None]:
    """Hide a GPU from what is started in this context: Ray offers only the GPUs that it sees when it starts."""
    if device is None or device.type != "cuda":
        yield
        return
    name, before = "CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = [str(number) for number in range(torch.cuda.device_count())] if before is None else before.split(",")
    del seen[device.index or 0]
    os.environ[name] = ",".join(seen)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def other_nodes() -> list[str]:
    """Return the ids of all nodes but the one that this process runs on."""
    import ray

    this_node = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return sorted(node["NodeID"] for node in nodes if node["Alive"] and node["NodeID"] != this_node)


def reserve(bundles: Sequence[Mapping[str, float]]) -> Any:
    """Return a Ray placement group of these resource bundles; an error if the cluster does not have them in time."""
    from ray.util.placement_group import placement_group

    group = placement_group([dict(bundle) for bundle in bundles], strategy="PACK")
    wait_for_bundles(group, len(bundles))
    return group


def wait_for_bundles(group: Any, count: int) -> None:
    """Wait until a number of a placement group's bundles have a node; they lose it when the node dies.

    If they do not in time, the group is removed, and an error says what the cluster has.
    """
    import ray
    from ray.util.placement_group import remove_placement_group

    def on_nodes() -> int:
        return sum(bool(node) for node in _nodes(group).values())

    if on_nodes() < count and not group.wait(RESERVE_SECONDS) and on_nodes() < count:
        remove_placement_group(group)
        asked: Counter[str] = Counter()
        for bundle in group.bundle_specs:
            asked.update(bundle)
        total, free = ray.cluster_resources(), ray.available_resources()  # type: ignore[no-untyped-call]
        have = ", ".join(f"{total.get(name, 0):g} {name} ({free.get(name, 0):g} free)" for name in asked)
        need = ", ".join(f"{count:g} {name}" for name, count in asked.items())
        raise TrainingError(
            f"the Ray cluster has {have}; this run needs {need} in {group.bundle_count} processes. Reduce "
            "engine.trainers or sampler.count, free resources, or add nodes"
        )


def node_by_node(group: Any) -> list[int]:
    """Return the bundles of a placement group, one node after another."""
    nodes = _nodes(group)
    return sorted(nodes, key=lambda bundle: (nodes[bundle], bundle))


def _nodes(group: Any) -> dict[int, str]:
    """Return the nodes of a placement group's bundles; an empty string for those without one."""
    from ray.util.placement_group import placement_group_table

    return dict(placement_group_table(group)["bundles_to_node_id"])
