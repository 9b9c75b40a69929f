"""Start or join a Ray cluster and reserve resources in it.

Access to the ports of a Ray cluster is access to run code in all its processes. One that is started here is therefore
private: its ports are on the loopback interface, it requires a token, and its files are in a folder of this user.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shlex
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import torch

from seeupo.envs.trust import is_cluster_address
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
    from ray.exceptions import RayError

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {
        "runtime_env": worker_environment(on_this_machine=address is None),
        "log_to_driver": False,
        "logging_level": "error",
    }
    with ExitStack() as stack:
        if address is None:
            stack.enter_context(_token())
            # CPUs are only a count to Ray. Ranks on CPUs share the cores: more of them than cores is slow but possible.
            cpus = max(os.cpu_count() or 1, processes)
            folder = str(private_folder() / "ray")  # Ray lets all users write into its own
            options |= {"num_cpus": cpus, "include_dashboard": False, "address": "local", "_temp_dir": folder}
        else:
            options |= {"address": _resolved(address)}
        try:
            with _on_loopback(own_device) if address is None else nullcontext():
                ray.init(**options)
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise TrainingError(
                f"engine.address = {address!r}: no Ray cluster can be joined or started there: {first_line(error)}. "
                'Start one with "ray start --head", or leave engine.address out to start one on this machine'
            ) from error
        stack.callback(ray.shutdown)
        if address is None:
            _check_private()
        yield


def private_folder() -> Path:
    """Return a folder for temporary files that other users can neither read nor replace."""
    folder = Path(tempfile.gettempdir()) / f"seeupo-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise TrainingError(
            f"{folder}: expected a directory of yours that no other user can access (mode 0700). Remove it, or set "
            "TMPDIR to a directory of yours"
        )
    return folder


@contextmanager
def _token() -> Iterator[None]:
    """Have Ray require a random token of all that connect to it, which only this user can read."""
    try:
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
    except ImportError:
        raise TrainingError("Ray is too old to protect its ports: pip install -U 'seeupo[cluster]'") from None

    def reload() -> None:
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()

    with tempfile.NamedTemporaryFile("w", dir=private_folder(), suffix=".token") as file:  # has mode 0600
        file.write(secrets.token_hex(32))
        file.flush()
        try:
            with _variables(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=file.name, RAY_AUTH_TOKEN=None):
                reload()
                yield
        finally:
            reload()


@contextmanager
def _on_loopback(hidden: torch.device | None) -> Iterator[None]:
    """Have a Ray that is started in this context listen on the loopback interface, as it does on macOS.

    It offers only the GPUs that it sees when it starts; `hidden` is not one of them.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # means: of several machines
    try:
        with _hidden(hidden):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _check_private() -> None:
    """Raise unless the cluster that was started listens on the loopback interface and requires a token."""
    import ray
    from ray._raylet import AuthenticationMode, get_authentication_mode  # type: ignore[attr-defined]

    host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    if not ip_address(host).is_loopback or get_authentication_mode() != AuthenticationMode.TOKEN:
        raise TrainingError(
            f"Ray {ray.__version__} would accept connections from other machines or users. Install a tested version: "
            "pip install 'seeupo[cluster]' -c constraints.txt"
        )


def _resolved(address: str) -> str:
    """Return the address that Ray will use; `RAY_ADDRESS` is what "auto" means if it is set."""
    resolved = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if not is_cluster_address(resolved):  # Ray imports the module that another scheme names
        raise TrainingError(f"RAY_ADDRESS = {resolved!r}: expected host:port of a Ray cluster, which ray:// is not")
    return resolved


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
    """Hide a GPU from what is started in this context."""
    name = "CUDA_VISIBLE_DEVICES"
    if device is None or device.type != "cuda":
        yield
        return
    before = os.environ.get(name)
    seen = [str(number) for number in range(torch.cuda.device_count())] if before is None else before.split(",")
    del seen[device.index or 0]
    with _variables(**{name: ",".join(seen)}):
        yield


@contextmanager
def _variables(**values: str | None) -> Iterator[None]:
    """Set environment variables in this context; None removes one."""
    before = {name: os.environ.get(name) for name in values}

    def set_all(variables: Mapping[str, str | None]) -> None:
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    set_all(values)
    try:
        yield
    finally:
        set_all(before)


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
