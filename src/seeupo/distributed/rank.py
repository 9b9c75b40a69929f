"""One rank of the cluster engine: a process with a part of the weights and of every batch."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.models.loading import LoadedPolicy
from seeupo.models.precision import resolve_device
from seeupo.models.streaming import WeightStream

SIOCGIFADDR = 0x8915
"""Linux's request for the address of a network interface."""


@dataclass(frozen=True)
class RankPlan:
    """How a rank builds its engine; every rank gets the same plan.

    Attributes:
        load: Loads the policy as a whole.
        stream: Reads the policy weight by weight instead, so that a rank never has all of it; None if that is not
            possible.
        optimizer, options: Arguments of `LocalEngine`.
        replicas, cpu_offload: As in `EngineSettings`.
        threads: Number of PyTorch threads per rank.
    """

    load: Callable[[], LoadedPolicy]
    optimizer: OptimizerSettings
    options: dict[str, Any]
    replicas: int
    cpu_offload: bool
    threads: int
    stream: WeightStream | None = None


class Rank:
    """The body of a Ray actor. All ranks receive the same calls, each with its own turns."""

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count
        self.engine: LocalEngine

    def address(self) -> str:
        """Return an address at which this process can be reached by other processes of the cluster."""
        with socket.create_server((host := node_address(), 0), family=_family(host)) as probe:
            return f"tcp://{host}:{probe.getsockname()[1]}"

    def listen(self) -> tuple[str, int]:
        """Listen for the other ranks, on the interface of the cluster only, and return host and port."""
        host = node_address()
        self._listener = socket.create_server((host, 0), family=_family(host), backlog=self.count)
        return host, self._listener.getsockname()[1]

    def connect(self, address: tuple[str, int], seconds: float) -> None:
        """Join the process group of all ranks; `seconds` limits every collective operation."""
        name = interface_of(node_address())
        if name is not None:  # otherwise that of the host's name
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            if ip_address(node_address()).is_loopback:
                os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
        backends = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        limit = timedelta(seconds=seconds)
        # Without a socket, the store would listen on all interfaces.
        listener = self._listener.detach() if self.number == 0 else None
        store = TCPStore(*address, self.count, self.number == 0, limit, master_listen_fd=listener)
        dist.init_process_group(backends, store=store, rank=self.number, world_size=self.count, timeout=limit)

    def build(self, plan: RankPlan) -> int:
        """Build the engine and return the maximum length of its packed rows."""
        from seeupo.distributed.fsdp import Fsdp

        torch.set_num_threads(plan.threads)
        stream = plan.stream
        policy = plan.load() if stream is None else stream.policy()
        device = policy.model.device if stream is None else resolve_device(stream.device)
        sharding = Fsdp(
            device.type,
            replicas=plan.replicas,
            compute_dtype=policy.compute_dtype,
            cpu_offload=plan.cpu_offload,
        )
        weights = () if stream is None else stream.weights(policy.model)
        self.engine = LocalEngine(policy, plan.optimizer, sharding=sharding, weights=weights, **plan.options)
        return self.engine.row_tokens

    def run(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the engine, which all ranks call together."""
        return getattr(self.engine, method)(*arguments, **options)

    def begin_shrinkable_steps(self) -> None:
        """Remember the trained weights until `end_shrinkable_steps`."""
        self._shrinking = ExitStack()
        self._shrink = self._shrinking.enter_context(self.engine.shrinkable_steps())

    def shrink_steps(self, factor: float) -> None:
        self._shrink(factor)

    def end_shrinkable_steps(self) -> None:
        """Release the remembered weights."""
        self._shrinking.close()
        del self._shrink

    def weights(self) -> dict[str, Tensor]:
        """Gather all weights on the CPU; other ranks than rank 0 return none."""
        torch.cuda.empty_cache()  # a sampler on the same GPU may need what the update has used
        return self.engine.first_rank_copy(self.engine.weights())

    def connect_samplers(self, plan: Any) -> None:
        """Prepare to send weights to vLLM samplers on GPUs; `plan` is a `TransferPlan`."""
        from seeupo.distributed.vllm_transfer import WeightSender

        self._sender = WeightSender(plan, self.number, self.engine)

    def send_weights(self, version: int) -> None:
        torch.cuda.empty_cache()
        self._sender.send(version)


def node_address() -> str:
    """Return the IP address of this node in the Ray cluster."""
    import ray

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def interface_of(host: str) -> str | None:
    """Return the network interface with an IPv4 address; None if there is none, or not on Linux."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without such an address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == host:
                    return name
    return None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
