"""The engine of many ranks: distributes turns over them and combines their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.distributed.direct_transfer import DirectSource, DirectTransfer
from seeupo.distributed.rank import RankPlan
from seeupo.distributed.rank_group import RankGroup
from seeupo.engines.local import trajectory_values
from seeupo.errors import TrainingError
from seeupo.models.packing.batching import Packing
from seeupo.models.packing.tree import pack_rows
from seeupo.protocols import Capability, CriticEngine, CriticLoss, Objective, TrainableEngine
from seeupo.types import AgentId, StepMetrics, Trajectory, Turn, number_of_tokens, turns_of


class ClusterEngine:
    """Trains a policy whose weights are sharded over the ranks of a group.

    Every call goes to all ranks, each with its share of the turns. Objectives are sums over turns, divided by a
    normalizer that is passed in, so the result does not depend on the number of ranks.

    Args:
        plan: How each rank builds its engine.
        packing: How ranks pack turns, which determines how they are distributed.
        start: Starts a group of ranks; called again when ranks were lost.
        restarts: Number of times that lost ranks are replaced without a checkpoint in between.
    """

    def __init__(self, plan: RankPlan, start: Callable[[], RankGroup], *, packing: Packing, restarts: int = 3) -> None:
        self.plan = plan
        self.packing = packing
        self.restarts = restarts
        self.optimizer = plan.optimizer
        self.iteration = 0
        self.tokens = 0
        self._start = start
        self._restarted = 0
        self._connected: tuple[RankGroup, dict[int, Any]] | None = None
        self._build()

    def _build(self) -> None:
        self._ranks = self._start()
        self._row_tokens: int = self._ranks.call("build", self.plan)[0]

    @property
    def capabilities(self) -> frozenset[Capability]:
        has_critic = self.plan.options.get("critic") is not None
        return frozenset({"send", "shrink", "critic"} if has_critic else {"send", "shrink"})

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        self.tokens += number_of_tokens(turns)
        return self._by_turn("logprobs", turns, policy=policy)

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: AgentId | None = None
    ) -> StepMetrics:
        self.tokens += number_of_tokens(turns)
        options = {"objective": _shared(objective), "normalizer": normalizer, "agent": agent}
        return self._step("step", "objective", turns, **options)

    @contextmanager
    def shrinkable_steps(self) -> Iterator[Callable[[float], None]]:
        def shrink(factor: float) -> None:
            self._ranks.call("shrink_steps", factor)

        self._ranks.call("begin_shrinkable_steps")
        try:
            yield shrink
        finally:
            if self._ranks.is_alive:
                self._ranks.call("end_shrinkable_steps")

    def values(self, trajectories: Sequence[Trajectory]) -> list[Tensor]:
        return trajectory_values(trajectories, self._by_turn("turn_values", turns_of(trajectories)))

    def step_critic(self, turns: Sequence[Turn], loss: CriticLoss, *, normalizer: float) -> StepMetrics:
        return self._step("step_critic", "critic_loss", turns, loss=_shared(loss), normalizer=normalizer)

    def begin_iteration(self, iteration: int) -> None:
        self.iteration = iteration
        self._ranks.call("run", "begin_iteration", iteration)

    def learning_rate(self, iteration: int) -> float:
        return self.optimizer.rate_at(iteration)

    def set_optimizer(self, settings: OptimizerSettings) -> None:
        self.optimizer = settings
        self._ranks.call("run", "set_optimizer", settings)

    def snapshot_reference(self) -> None:
        self._ranks.call("run", "snapshot_reference")

    def reset_critic(self) -> None:
        self._ranks.call("run", "reset_critic")

    def copy_first_adapter(self) -> None:
        self._ranks.call("run", "copy_first_adapter")

    def keep_trunk(self, turns: Sequence[Turn]) -> None:
        raise TypeError("ranks keep hidden states during an iteration only; this engine lacks the capability trunk")

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._ranks.call("run", "save", path.absolute())
        self._restarted = 0

    def load(self, path: Path) -> None:
        """Restore a checkpoint; ranks that were lost are replaced first."""
        if not self._ranks.is_alive:
            self._restarted += 1
            if self._restarted > self.restarts:
                raise TrainingError(
                    f"ranks of the cluster engine were lost {self._restarted} times without a checkpoint in between. "
                    "Look for the reason in Ray's logs, then continue with --resume"
                )
            self._build()
            self._ranks.call("run", "set_optimizer", self.optimizer)
        self._ranks.call("run", "load", path.absolute())

    def export(self, path: Path) -> None:
        self._ranks.call("run", "export", path.absolute())

    def owns(self, model: object) -> bool:
        return False

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._ranks.call("weights")[0].items()

    def send_weights(self, samplers: Mapping[int, Any], version: int, transfer: DirectTransfer) -> None:
        """Send the weights from the ranks' GPUs to the GPUs of vLLM samplers; connect first if either have changed."""
        if self._connected != (self._ranks, dict(samplers)):
            from seeupo.distributed.vllm_transfer import TransferPlan

            address = self._ranks.call("address")[0]
            plan = TransferPlan(transfer, samplers, address, self._ranks.call_seconds)
            self._ranks.call("connect_samplers", plan)
            self._connected = (self._ranks, dict(samplers))
        self._ranks.call("send_weights", version)

    def close(self) -> None:
        """Stop all ranks."""
        self._ranks.close()

    def _split(self, method: str, turns: Sequence[Turn], **options: Any) -> Iterator[tuple[list[int], Any]]:
        """Call a method of every rank's engine with its share of the turns; return their indices and its result."""
        shares = partition(turns, self._ranks.count, self.packing, row_tokens=self._row_tokens)
        parts = [[turns[index] for index in share] for share in shares]
        return zip(shares, self._ranks.call("run", method, parts=parts, **options), strict=True)

    def _by_turn(self, method: str, turns: Sequence[Turn], **options: Any) -> list[Tensor]:
        rows: dict[int, Tensor] = {}
        for share, results in self._split(method, turns, **options):
            rows |= zip(share, results, strict=True)
        return [rows[index] for index in range(len(turns))]

    def _step(self, method: str, total: str, turns: Sequence[Turn], **options: Any) -> StepMetrics:
        """Take a step; the metric `total` is a sum over turns, the others are the same on all ranks."""
        by_rank: list[StepMetrics] = [metrics for _, metrics in self._split(method, turns, **options)]
        values = {**by_rank[0].values, total: sum(metrics.values[total] for metrics in by_rank)}
        return StepMetrics(by_rank[0].agent, values)


def partition(turns: Sequence[Turn], ranks: int, packing: Packing, *, row_tokens: int) -> list[list[int]]:
    """Return the indices of each rank's turns, balanced by tokens to compute.

    Turns that share a prefix are packed into one row and stay together, so no token is computed on two ranks because of
    the partition. Rows are assigned in order of length, each to the rank with the fewest tokens so far.
    """
    if packing == "tree":
        work = [(len(row.tokens), list(row.members)) for row in pack_rows(turns, row_tokens=row_tokens)]
    else:
        work = [(len(turn.prompt_ids) + len(turn.action_ids), [index]) for index, turn in enumerate(turns)]
    parts: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for tokens, members in sorted(work, key=lambda item: (-item[0], item[1])):
        lightest = loads.index(min(loads))
        loads[lightest] += tokens
        parts[lightest] += members
    return [sorted(part) for part in parts]


def _shared(value: object) -> Any:
    """Put a value into Ray's memory once for all ranks."""
    import ray

    return ray.put(value)


if TYPE_CHECKING:
    # Let mypy verify the protocols.
    _trainable: type[TrainableEngine] = ClusterEngine
    _with_critic: type[CriticEngine] = ClusterEngine
    _direct: type[DirectSource] = ClusterEngine
