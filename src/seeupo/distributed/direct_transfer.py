"""Transfer of weights between the GPUs of a cluster engine and of vLLM samplers, without Ray's object store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from seeupo.config.process_settings import SamplerSettings
from seeupo.protocols import TrainableEngine


@dataclass(frozen=True)
class DirectTransfer:
    """A transfer of weights from the GPUs of a cluster engine to the GPUs of vLLM samplers.

    Attributes:
        backend: Backend of vLLM's weight transfer: "nccl" between GPUs, "ipc" on GPUs that trainers and samplers share.
        workers: Number of GPUs per sampler.
        dtype: Data type of the samplers, in which weights are sent.
    """

    backend: Literal["nccl", "ipc"]
    workers: int
    dtype: str


def direct_transfer(
    settings: SamplerSettings, *, cluster: bool, device: str, dtype: str, adapters: bool = False
) -> DirectTransfer | None:
    """Return how weights reach vLLM samplers on the GPUs of a cluster; None if they go through Ray's object store.

    With adapters per turn or role (`adapters`), only these are sent, which are small and which vLLM reads from files.
    """
    if settings.kind != "vllm" or not cluster or not device.startswith("cuda") or adapters:
        return None
    return DirectTransfer("ipc" if settings.placement == "shared" else "nccl", settings.tensor_parallel, dtype)


class DirectSource(TrainableEngine, Protocol):
    """A train engine with the capability "send": it sends weights from its GPUs to those of samplers."""

    def send_weights(self, samplers: Mapping[int, Any], version: int, transfer: DirectTransfer) -> None:
        """Replace the weights of the samplers' Ray actors, which are given by their numbers."""
