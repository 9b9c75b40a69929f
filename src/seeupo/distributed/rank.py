"""One rank of the cluster engine: a process with a part of the weights and of every batch."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.models.loading import LoadedPolicy
from seeupo.models.precision import resolve_device
from seeupo.models.streaming import WeightStream


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
        """Return an address at which this process can be reached by the other ranks."""
        import ray

        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"tcp://{host}:{probe.getsockname()[1]}"

    def connect(self, address: str, seconds: float) -> None:
        """Join the process group of all ranks; `seconds` limits every collective operation."""
        backends = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(
            backends,
            init_method=address,
            rank=self.number,
            world_size=self.count,
            timeout=timedelta(seconds=seconds),
        )

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
