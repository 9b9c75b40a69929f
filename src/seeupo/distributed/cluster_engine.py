"""The cluster engine: what an algorithm sees of many ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.distributed.direct_transfer import DirectSource, DirectTransfer
from seeupo.distributed.partition import partition
from seeupo.distributed.rank import RankPlan
from seeupo.distributed.rank_group import RankGroup
from seeupo.engines.local import trajectory_values
from seeupo.errors import TrainingError
from seeupo.models.packing.batching import Packing
from seeupo.models.precision import DTYPES
from seeupo.protocols import Capability, CriticEngine, CriticLoss, Objective, TrainableEngine
from seeupo.types import StepMetrics, Trajectory, Turn, TurnKey, number_of_tokens, turns_of


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
        self._ranks = self._build()

    def _build(self) -> RankGroup:
        ranks = self._start()
        ranks.call("build", self.plan)
        self.info = ranks.call("info")[0]
        return ranks

    @property
    def capabilities(self) -> frozenset[Capability]:
        has_critic = self.plan.options.get("critic") is not None
        return frozenset({"send", "shrink", "critic"} if has_critic else {"send", "shrink"})

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        self.tokens += number_of_tokens(turns)
        return self._by_turn("logprobs", turns, policy)

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: int | None = None
    ) -> StepMetrics:
        self.tokens += number_of_tokens(turns)
        return _sum_over_ranks(self._split("step", turns, _shared(objective), normalizer, agent), "objective")

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
        return _sum_over_ranks(self._split("step_critic", turns, _shared(loss), normalizer), "critic_loss")

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
            self._ranks = self._build()
            self._ranks.call("run", "set_optimizer", self.optimizer)
        self._ranks.call("run", "load", path.absolute())

    def export(self, path: Path) -> None:
        self._ranks.call("run", "export", path.absolute())

    def owns(self, model: object) -> bool:
        return False

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._ranks.call("weights")[0].items()

    def send_weights(self, samplers: Mapping[int, Any], version: int, transfer: DirectTransfer) -> None:
        """Send the weights from the ranks' GPUs to those of vLLM samplers; connect first if either have changed."""
        if self._connected != (self._ranks, dict(samplers)):
            from seeupo.distributed.vllm_transfer import TransferPlan

            address = self._ranks.call("address")[0]
            seconds = self._ranks.call_seconds
            plan = TransferPlan(transfer.backend, samplers, transfer.workers, address, DTYPES[transfer.dtype], seconds)
            self._ranks.call("connect_samplers", plan)
            self._connected = (self._ranks, dict(samplers))
        self._ranks.call("send_weights", version)

    def close(self) -> None:
        """Stop all ranks."""
        self._ranks.close()

    def _split(self, method: str, turns: Sequence[Turn], *arguments: Any) -> list[Any]:
        """Call a method of every rank with its share of the turns."""
        parts = partition(turns, self._ranks.count, self.packing, row_tokens=self.info["row_tokens"])
        return self._ranks.call(method, *arguments, part=lambda rank: [turns[index] for index in parts[rank]])

    def _by_turn(self, method: str, turns: Sequence[Turn], *arguments: Any) -> list[Tensor]:
        rows: dict[TurnKey, Tensor] = {}
        for part in self._split(method, turns, *arguments):
            rows |= part
        return [rows[turn.key] for turn in turns]


def _shared(value: object) -> Any:
    """Put a value into Ray's memory once for all ranks."""
    import ray

    return ray.put(value)


def _sum_over_ranks(by_rank: Sequence[StepMetrics], name: str) -> StepMetrics:
    """Return the metrics of a step: `name` is a sum over turns, the others are the same on all ranks."""
    total = sum(metrics.values[name] for metrics in by_rank)
    return StepMetrics(by_rank[0].agent, {**by_rank[0].values, name: total})


if TYPE_CHECKING:
    # Let mypy verify the protocols.
    _trainable: type[TrainableEngine] = ClusterEngine
    _with_critic: type[CriticEngine] = ClusterEngine
    _direct: type[DirectSource] = ClusterEngine
