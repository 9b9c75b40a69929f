"""Settings of the processes that train and sample, and of the differences between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from seeupo.config.option_types import NonNegative, NonNegativeInt, Options, PositiveInt, Range
from seeupo.envs.trust import is_cluster_address
from seeupo.types import Behavior
from seeupo.utils.option_checks import OptionError

EngineKind = Literal["local", "cluster"]
SamplerKind = Literal["local", "vllm"]
Placement = Literal["apart", "shared"]
MismatchLevel = Literal["token", "turn"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings(Options):
    """Processes that train the policy.

    Attributes:
        kind: "local" trains in this process; "cluster" in Ray actors, with the weights sharded over them by FSDP2.
        trainers: Number of ranks, one per GPU; more than one needs kind = "cluster".
        replicas: Number of copies of the sharded weights, usually one per node (hybrid sharding); divides `trainers`.
        cpu_offload: Shards and optimizer state in the memory of the CPU between uses.
        address: Ray cluster to join, with your consent: "auto" for the running one, or host:port; "none" starts one
            that only this run can use on this machine.
        call_seconds: Time limit of a pass over a batch in seconds, after which a rank counts as lost.
        restarts: Number of times that lost ranks are replaced without a checkpoint in between.
    """

    kind: EngineKind = "local"
    trainers: PositiveInt = 1
    replicas: PositiveInt = 1
    cpu_offload: bool = False
    address: str | None = None
    call_seconds: Annotated[float, Range(1)] = 3600.0
    restarts: NonNegativeInt = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainers % self.replicas:
            raise OptionError("replicas", self.replicas, f"a divisor of trainers = {self.trainers}")
        if self.kind == "local" and self.trainers > 1:
            raise OptionError("trainers", self.trainers, '1, or kind = "cluster" for several ranks')
        if self.address is not None and not is_cluster_address(self.address):
            raise OptionError("address", self.address, '"auto", host:port of a Ray cluster (not ray://), or "none"')


@dataclass(frozen=True, kw_only=True)
class SamplerSettings(Options):
    """Processes that sample actions.

    Attributes:
        kind: "local" is this library's sampler; "vllm" is vLLM (needs the extra 'vllm' on GPUs).
        count: Number of sampler processes (Ray actors); 0 samples in the trainer's process, which kind = "local" can.
        tensor_parallel: Number of GPUs per vLLM sampler.
        placement: "apart": samplers have GPUs of their own; "shared": they use those of the ranks of a cluster engine,
            and release their memory during updates.
        gpu_memory: Fraction of a GPU's memory that a vLLM sampler uses.
        speculation: With kind = "local", draft several tokens per forward pass from what was sampled before, and keep
            those that sampling one at a time would give.
    """

    kind: SamplerKind = "local"
    count: NonNegativeInt = 0
    tensor_parallel: PositiveInt = 1
    placement: Placement = "apart"
    gpu_memory: Annotated[float, Range(0, 1, exclude_low=True)] = 0.85
    speculation: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "vllm" and self.count == 0:
            raise OptionError("count", self.count, 'at least 1 with kind = "vllm"')


@dataclass(frozen=True, kw_only=True)
class MismatchSettings(Options):
    """Differences between the log-probs of sampler and trainer: how they are checked and corrected.

    Attributes:
        check_every: Iterations between comparisons of both log-probs on a few trajectories; 0 never compares.
        max_gap: Mean absolute difference per token above which training stops; "none" means no limit.
        recorded_gap: Mean absolute difference per token up to which the sampler's log-probs replace the forward pass
            before the first step, in iterations that compare both; "none" always computes them.
        tis_cap: C of truncated importance sampling, which multiplies gradients by w = min(pi_trainer / pi_sampler, C);
            "none" means w = 1.
        tis_level: "token": w from the probabilities of each token; "turn": from the product over a turn.
        turn_bounds: Bounds (low, high) of a turn's geometric mean of pi_trainer / pi_sampler; turns outside have no
            gradient. "none" uses all turns.
    """

    check_every: NonNegativeInt = 1
    max_gap: NonNegative | None = 0.5
    recorded_gap: NonNegative | None = None
    tis_cap: NonNegative | None = None
    tis_level: MismatchLevel = "token"
    turn_bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recorded_gap is not None and not self.check_every:
            raise OptionError("recorded_gap", self.recorded_gap, '"none" with check_every = 0, which never compares')
        if self.turn_bounds is not None and not 0 <= self.turn_bounds[0] <= 1 <= self.turn_bounds[1]:
            raise OptionError("turn_bounds", self.turn_bounds, "a pair (low, high) with low <= 1 <= high")

    def behavior(self, *, recorded: bool) -> Behavior:
        """Return how an update treats the policy that sampled its trajectories."""
        return Behavior(recorded=recorded, tis_cap=self.tis_cap, tis_level=self.tis_level, turn_bounds=self.turn_bounds)
