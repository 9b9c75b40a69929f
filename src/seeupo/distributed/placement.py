"""Resources of a Ray cluster: for trainers or samplers alone, or for both on the same GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seeupo.distributed.ray_cluster import START_SECONDS, reserve


@dataclass(frozen=True)
class Bundles:
    """Bundles of resources: of one process each, or each with the GPUs of one sampler and of the ranks that share them.

    Ray cannot give two processes the same GPUs if one of them uses several. So ranks reserve the GPUs, and a sampler,
    which reserves none, is told which devices are those of its bundle. A bundle is always on one node.

    Attributes:
        ranks_per_bundle: Number of ranks in each bundle: as many as the GPUs of a sampler that shares them.
        devices: GPUs of each bundle, as CUDA_VISIBLE_DEVICES names them on its node; empty if Ray chooses them.
    """

    group: Any
    ranks_per_bundle: int = 1
    devices: tuple[tuple[str, ...], ...] = ()

    def start(self, body: type, bundle: int, gpus: float, *arguments: Any) -> Any:
        """Start a Ray actor in a bundle and return its handle."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor: Any = ray.remote(body)
        strategy = PlacementGroupSchedulingStrategy(self.group, bundle)
        return actor.options(num_cpus=1, num_gpus=gpus, scheduling_strategy=strategy).remote(*arguments)

    def close(self) -> None:
        """Free the resources."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self.group)


def reserve_separate(count: int, gpus: float) -> Bundles:
    """Reserve resources for a number of processes with a number of GPUs each."""
    return Bundles(reserve([{"CPU": 1} | ({"GPU": gpus} if gpus else {})] * count))


def reserve_shared(trainers: int, samplers: int, *, tensor_parallel: int, on_gpu: bool) -> Bundles:
    """Reserve resources for ranks and for samplers of `tensor_parallel` GPUs each on the same devices.

    Args:
        trainers: Number of ranks, a multiple of `tensor_parallel`.
        samplers: Number of samplers, at most one per `tensor_parallel` ranks.
        on_gpu: Whether there are GPUs to share; on CPUs the processes only share the placement group.
    """
    count = trainers // tensor_parallel
    group = reserve(
        [
            {"CPU": tensor_parallel + (number < samplers)} | ({"GPU": tensor_parallel} if on_gpu else {})
            for number in range(count)
        ]
    )
    devices = _devices(group, count, tensor_parallel) if on_gpu else ()
    return Bundles(group, tensor_parallel, devices)


def _devices(group: Any, count: int, gpus: int) -> tuple[tuple[str, ...], ...]:
    """Return the GPUs of each bundle, by a task that reserves all of them for a moment."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    task: Any = ray.remote(_reserved_gpus)
    tasks = []
    for number in range(count):
        strategy = PlacementGroupSchedulingStrategy(group, number)
        tasks.append(task.options(num_cpus=0, num_gpus=gpus, scheduling_strategy=strategy).remote())
    return tuple(ray.get(tasks, timeout=START_SECONDS))


def _reserved_gpus() -> tuple[str, ...]:
    import ray

    return tuple(str(gpu) for gpu in ray.get_gpu_ids())
