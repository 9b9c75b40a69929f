"""The update of one virtual agent: optimizer steps on its pool, shrunk until they are within a trust region.

    theta = before + alpha * (after - before),     alpha = 1, 1/2, 1/4, ...

The first theta is taken whose KL(theta_k || theta) on the pool is within the limit and whose unclipped surrogate
mean[r M] is not below that of `before`. If none is, the agent keeps its weights. An agent whose KL exceeds the limit
before its steps, because other agents' steps moved shared weights, is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import LogProbs, action_mask, by_key, padded
from seeupo.algorithms.common.objective import TrajectoryObjective, action_log_ratio
from seeupo.core import k3
from seeupo.core.checks import OptionError, check_at_least, check_count
from seeupo.protocols import TrainEngine
from seeupo.types import StepMetrics, Turn


@dataclass(frozen=True, kw_only=True)
class TrustRegionSettings:
    """Limits of the change of the policy by a turn's optimizer steps; steps beyond them are shrunk.

    Attributes:
        kl: Largest KL(theta_k || theta), summed over a turn's tokens and averaged over the turns of the pool.
        backtracks: Number of times that steps are halved before they are undone.
    """

    kl: float = 0.01
    backtracks: int = 6

    def __post_init__(self) -> None:
        check_at_least("kl", self.kl, 0)
        if self.kl == 0:
            raise OptionError("kl", self.kl, "a number above 0")
        check_count("backtracks", self.backtracks, 0)


@dataclass(frozen=True, kw_only=True)
class TakenSteps:
    """The optimizer steps of one agent, as far as they were kept.

    Attributes:
        steps: Metrics of the steps; empty if the agent was skipped.
        new: Log-probs of the measured turns at the weights that were kept.
        metrics: `step_scale` (alpha), `pool_kl` and `surrogate_gain`; empty without a trust region.
    """

    steps: Sequence[StepMetrics]
    new: LogProbs
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PoolUpdate:
    """The update of one virtual agent on its pool.

    Attributes:
        parts: Turns and normalizer of each optimizer step.
        turns: Turns whose log-probs are measured: with a trust region all of the pool, those with M = 0 included.
        total: Number of trajectories in the batch, by multiplicity.
        moved: Whether the weights may already differ from theta_k.
    """

    engine: TrainEngine
    objective: TrajectoryObjective
    agent: int
    parts: Sequence[tuple[Sequence[Turn], float]]
    turns: Sequence[Turn]
    total: float
    moved: bool

    def run(self, region: TrustRegionSettings | None) -> TakenSteps:
        """Take the optimizer steps, and shrink them until they are within the trust region; none keeps them in full."""
        if region is None:
            return TakenSteps(steps=self._take_steps(), new=self._logprobs(self.turns))
        if "shrink" not in self.engine.capabilities:
            raise TypeError(f'{type(self.engine).__name__} lacks the capability "shrink", which a trust region needs')
        start = self._logprobs(self.turns) if self.moved else self.objective.old

        def kept(steps: Sequence[StepMetrics], new: LogProbs, scale: float) -> TakenSteps:
            metrics = {"step_scale": scale, "pool_kl": self.kl(new), "surrogate_gain": self.gain(new, start)}
            return TakenSteps(steps=steps, new=new, metrics=metrics)

        if self.kl(start) > region.kl:
            return kept((), start, 0.0)
        with self.engine.shrinkable_steps() as shrink:
            steps = self._take_steps()
            for halvings in range(region.backtracks + 1):
                if halvings:
                    shrink(0.5)
                new = self._logprobs(self.turns)
                # Both comparisons are false for nan.
                if self.kl(new) <= region.kl and self.gain(new, start) >= 0:
                    return kept(steps, new, 0.5**halvings)
            shrink(0.0)
        return kept(steps, start, 0.0)

    def kl(self, new: LogProbs) -> float:
        """Return the mean over turns of the k3 estimates of KL(theta_k || theta), summed over their tokens."""
        counts_N = self._counts(turn.trajectory for turn in self.turns)
        kl_NL = k3(padded(self.turns, self.objective.old).double(), padded(self.turns, new).double())
        kl_N = torch.where(action_mask(self.turns), kl_NL, 0.0).sum(1)
        return float((counts_N * kl_N).sum() / counts_N.sum())

    def gain(self, new: LogProbs, start: LogProbs) -> float:
        """Return the unclipped mean[r M] over all trajectories minus its value at the log-probs `start`."""
        actions, old = self.objective.turns, self.objective.old
        weights = torch.tensor([self.objective.advantages[name] for name in actions], dtype=torch.float64)
        after, before = (
            action_log_ratio(actions.values(), logprobs, old, self.objective.ratio).exp() for logprobs in (new, start)
        )
        # M = 0 adds 0 for any ratio: 0 * inf would be nan.
        gains = torch.where(weights == 0, 0.0, weights * (after - before))
        return float((self._counts(actions) * gains).sum() / self.total)

    def _take_steps(self) -> list[StepMetrics]:
        steps: list[StepMetrics] = []
        for part, normalizer in self.parts:
            moved = self.moved or len(steps) > 0
            objective = self.objective.for_step(self._logprobs, part) if moved else self.objective
            steps.append(self.engine.step(part, objective, normalizer=normalizer, agent=self.agent))
        return steps

    def _logprobs(self, turns: Sequence[Turn]) -> LogProbs:
        return by_key(turns, self.engine.logprobs(turns))

    def _counts(self, trajectories: Iterable[str]) -> Tensor:
        return torch.tensor([self.objective.multiplicities[name] for name in trajectories], dtype=torch.float64)
