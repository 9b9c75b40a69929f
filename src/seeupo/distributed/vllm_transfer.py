"""Weights from the ranks of a cluster engine to vLLM samplers on GPUs, by vLLM's weight transfer.

Between different GPUs they are broadcast by NCCL; on a GPU that trainer and sampler share, the sampler reads the
trainer's memory (CUDA IPC). Neither has ever been run: no GPU was available. Elsewhere weights go through Ray's object
store, which is tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from seeupo.distributed.direct_transfer import DirectTransfer
from seeupo.engines.local import LocalEngine
from seeupo.models.lora.adapters import base_weights
from seeupo.models.precision import DTYPES


@dataclass(frozen=True)
class TransferPlan:
    """A connection of all ranks with vLLM samplers; every rank gets the same plan.

    Attributes:
        samplers: Ray actors of the samplers by number.
        address: Address of rank 0, as tcp://host:port.
        seconds: Time limit of a sampler's answer.
    """

    transfer: DirectTransfer
    samplers: Mapping[int, Any]
    address: str
    seconds: float

    def init_info(self, rank: int) -> TrainerInitInfo:
        """Return the trainer's part of the connection."""
        if self.transfer.backend == "ipc":
            return IPCTrainerInitInfo(rank=rank, packed=True)  # packed: a buffer at a time, not all weights
        host = urlsplit(self.address)
        return NCCLTrainerInitInfo(
            rank=rank,
            master_address=host.hostname,
            master_port=host.port,
            world_size=1 + self.transfer.workers * len(self.samplers),
        )


class PolicyWeights(WeightSource):  # type: ignore[misc]
    """The weights of an engine by their Hugging Face names, adapters merged; all ranks gather them together."""

    def __init__(self, engine: LocalEngine, dtype: torch.dtype) -> None:
        self.engine, self.dtype = engine, dtype

    def metadata(self) -> list[ParamMeta]:
        weights = base_weights(self.engine.policy.model)
        return [ParamMeta(name, self.dtype, tuple(weight.shape)) for name, weight in weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self.engine.weights():
            yield name, weight.to(self.dtype)


class SamplerClient:
    """Calls the samplers for vLLM's trainer side.

    Like vLLM's own client for Ray actors, but every wait has a limit, and each sampler gets ranks of its own in the
    group of NCCL: vLLM counts ranks within one deployment, and these samplers are independent.
    """

    def __init__(self, plan: TransferPlan, version: int = 0) -> None:
        self.plan, self.version = plan, version

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        calls = []
        for index, (_, actor) in enumerate(sorted(self.plan.samplers.items())):
            info = dict(init_info)
            if "rank_offset" in info:
                info["rank_offset"] += index * self.plan.transfer.workers
            calls.append(actor.call.remote("init_weight_transfer_engine", info))
        self._wait(calls)

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update", self.version)

    def _call(self, method: str, *arguments: Any) -> None:
        self._wait([actor.call.remote(method, *arguments) for actor in self.plan.samplers.values()])

    def _wait(self, calls: list[Any]) -> None:
        import ray

        ray.get(calls, timeout=self.plan.seconds)


class WeightSender:
    """One rank's side of a connection. All ranks make the same calls; rank 0 talks to the samplers."""

    def __init__(self, plan: TransferPlan, rank: int, engine: LocalEngine) -> None:
        self.plan, self._client = plan, SamplerClient(plan)
        self._sender = WeightTransferTrainerFactory.trainer_init(
            plan.init_info(rank), client=self._client, source=PolicyWeights(engine, DTYPES[plan.transfer.dtype])
        )

    def send(self, version: int) -> None:
        """Replace the weights of all samplers."""
        self._client.version = version
        self._sender.send_weights()
