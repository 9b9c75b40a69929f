"""Weights sharded over ranks by PyTorch's FSDP2."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


class Fsdp:
    """Shards modules over all ranks of the default process group.

    Args:
        replicas, cpu_offload: As in `EngineSettings`. Ranks of different replicas exchange gradients only.
        compute_dtype: Data type of forward and backward passes; gradients are summed in float32. None for the weights'.
    """

    def __init__(
        self,
        device_type: str,
        *,
        replicas: int = 1,
        compute_dtype: torch.dtype | None = None,
        cpu_offload: bool = False,
    ) -> None:
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        shape = (self.ranks,) if replicas == 1 else (replicas, self.ranks // replicas)
        names = ("shard",) if replicas == 1 else ("replicate", "shard")
        self.mesh = init_device_mesh(device_type, shape, mesh_dim_names=names)
        self._precision = MixedPrecisionPolicy(
            param_dtype=compute_dtype, reduce_dtype=None if compute_dtype is None else torch.float32
        )
        self._offload = CPUOffloadPolicy(pin_memory=device_type == "cuda") if cpu_offload else OffloadPolicy()
        self._counts = torch.zeros(1, dtype=torch.int64, device=device_type)

    def shard(self, module: nn.Module, *, exact: Sequence[nn.Module] = ()) -> None:
        # Weights are released after every forward pass, also those of the outermost module, which would otherwise keep
        # gathered copies from before an optimizer step.
        stacks = [child for child in module.modules() if isinstance(child, nn.ModuleList)]
        for part in [*exact, *(layer for stack in stacks for layer in stack), module]:
            fully_shard(
                part,
                mesh=self.mesh,
                reshard_after_forward=True,
                mp_policy=MixedPrecisionPolicy() if part in exact else self._precision,
                offload_policy=self._offload,
            )
        plain = [name for name, parameter in module.named_parameters() if not isinstance(parameter, DTensor)]
        if plain:
            raise RuntimeError(f"FSDP2 left {plain[0]} unsharded; expected all parameters to be DTensors")

    def largest(self, count: int) -> int:
        self._counts[0] = count
        dist.all_reduce(self._counts, op=dist.ReduceOp.MAX)
        return int(self._counts.item())

    def full(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor):
            return tensor
        # Every rank has the whole tensor and keeps its part; nothing is sent.
        whole = tensor.to(device=like.device if not like.is_meta else self.mesh.device_type, dtype=like.dtype)
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
