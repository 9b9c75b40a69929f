"""Settings of the engine: one process, or a cluster of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from seeupo.core.checks import OptionError, check_at_least, check_choice, check_count

EngineKind = Literal["local", "cluster"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Processes that train the policy.

    Attributes:
        kind: "local" trains in this process; "cluster" in Ray actors, with the weights sharded over them by FSDP2.
        trainers: Number of ranks, one per GPU; more than one needs kind = "cluster".
        replicas: Number of copies of the sharded weights, usually one per node (hybrid sharding); divides `trainers`.
        cpu_offload: Shards and optimizer state in the memory of the CPU between uses.
        address: Ray cluster to join: "auto" for the running one, or host:port; "none" starts one on this machine.
        call_seconds: Time limit of a pass over a batch in seconds, after which a rank counts as lost.
        restarts: Number of times that lost ranks are replaced without a checkpoint in between.
    """

    kind: EngineKind = "local"
    trainers: int = 1
    replicas: int = 1
    cpu_offload: bool = False
    address: str | None = None
    call_seconds: float = 3600.0
    restarts: int = 3

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(EngineKind))
        check_count("trainers", self.trainers, 1)
        check_count("replicas", self.replicas, 1)
        check_count("restarts", self.restarts, 0)
        check_at_least("call_seconds", self.call_seconds, 1)
        if self.trainers % self.replicas:
            raise OptionError("replicas", self.replicas, f"a divisor of trainers = {self.trainers}")
        if self.kind == "local" and self.trainers > 1:
            raise OptionError("trainers", self.trainers, '1, or kind = "cluster" for several ranks')
