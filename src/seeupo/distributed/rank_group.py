"""A group of Ray actors, one per rank, that are called together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seeupo.distributed.placement import Bundles, reserve_separate
from seeupo.distributed.rank import Rank
from seeupo.distributed.ray_cluster import START_SECONDS, node_by_node
from seeupo.errors import EngineLost, first_line

DEATH_SECONDS = 10.0
"""Time in which the death of a rank is noticed after the others have failed."""


class RankGroup:
    """Starts ranks and calls all of them at once.

    Ranks are on as few nodes as possible, because a network is slower than a node. They are numbered node by node, so
    that the ranks of one copy of the weights (hybrid sharding) are neighbors. Without resources that are `shared` with
    samplers, `gpus` per rank are reserved.
    """

    def __init__(self, count: int, *, gpus: float = 0, call_seconds: float, shared: Bundles | None = None) -> None:
        self.count = count
        self.call_seconds = call_seconds
        bundles = shared or reserve_separate(count, gpus)
        self._reserved = bundles if shared is None else None
        bundle_of_rank = [bundle for bundle in node_by_node(bundles.group) for _ in range(bundles.ranks_per_bundle)]
        self._actors = [
            bundles.start(Rank, bundle, gpus, number, count) for number, bundle in enumerate(bundle_of_rank)
        ]
        address = self._wait([self._actors[0].listen.remote()], START_SECONDS)[0]
        self.call("connect", address, call_seconds)

    def call(self, method: str, *arguments: Any, parts: Sequence[Any] | None = None, **options: Any) -> list[Any]:
        """Call a method of every rank and return the results by rank; `parts` are the last arguments by rank."""
        if not self._actors:
            raise EngineLost("the ranks of the cluster engine were stopped; load a checkpoint to replace them")
        part_of_rank = [()] * self.count if parts is None else [(part,) for part in parts]
        calls = [
            getattr(actor, method).remote(*arguments, *part, **options)
            for actor, part in zip(self._actors, part_of_rank, strict=True)
        ]
        return self._wait(calls, self.call_seconds)

    def close(self) -> None:
        """Stop all ranks; idempotent."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        if self._actors and self._reserved is not None:
            self._reserved.close()
        self._actors = []

    @property
    def is_alive(self) -> bool:
        """Whether the ranks have not been stopped."""
        return bool(self._actors)

    def _wait(self, refs: list[Any], seconds: float) -> list[Any]:
        """Return the results. If one rank is lost or stuck, the others cannot finish either: all are stopped."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            waiting = list(refs)
            while waiting:
                # One at a time, so that an error of one rank is seen while the others wait for it.
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=seconds)
                if not ready:
                    raise GetTimeoutError(f"no answer in {seconds:g} s")
                ray.get(ready, timeout=seconds)
            return list(ray.get(refs, timeout=seconds))
        except RayTaskError as error:
            # A rank that dies breaks the connections of the others, whose errors may arrive first.
            lost = self._first_death(refs)
            self.close()
            if lost is not None:
                raise EngineLost(f"a rank of the cluster engine was lost: {first_line(lost)}") from lost
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except RayError as error:  # the rank, its answer on a lost node, or the time
            self.close()
            raise EngineLost(f"a rank of the cluster engine was lost: {first_line(error)}") from error

    def _first_death(self, refs: list[Any]) -> Exception | None:
        """Return the error of a rank that has died, if one has or does so within a few seconds."""
        import ray
        from ray.exceptions import RayActorError, RayError

        for ref in refs:
            try:
                ray.get(ref, timeout=DEATH_SECONDS)
            except RayActorError as error:
                return error
            except RayError:
                continue
        return None
