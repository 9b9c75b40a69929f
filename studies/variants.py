"""Variants of SeeUPO for studies: a replica of the authors' public code, controls of M, and a measurement of the drift.

A recipe or a study file names them as `algorithm.name = "studies/variants.py:ShuffledCarry"`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import Batch, LogProbs, logprobs_by_key
from seeupo.algorithms.common.objective import Ratio, TrajectoryObjective, action_log_ratio
from seeupo.algorithms.seeupo import SeeUPO
from seeupo.config.option_types import Clip
from seeupo.core.carry import CarriedAdvantage
from seeupo.protocols import TrainEngine
from seeupo.types import ON_POLICY, Behavior, StepMetrics, Trajectory, Turn, Update


@dataclass(frozen=True, kw_only=True)
class PublicCode(SeeUPO):
    """SeeUPO as the authors' public code has it; a trust region would limit the KL to the policy before each turn.

    Attributes:
        ratio_per_turn: Ratios relative to the policy right before the turn's update; False for theta_k.
        sample_deviation: Divide by the standard deviation of a sample (n - 1) over the batch, not the population (n).
        advantage_clip: Largest absolute advantage; none for no clip.
        carry_clip: Clip range (low, high) of each factor of M; none for no clip.
        carry_total_clip: Clip range (low, high) of the product of all factors, M / A; none for no clip.
    """

    kl_coef: float = 0.002
    ratio_per_turn: bool = True
    sample_deviation: bool = True
    advantage_clip: float | None = 3.0
    carry_clip: Clip | None = (0.2, 0.2)
    carry_total_clip: Clip | None = (0.2, 0.2)

    def advantages(self, batch: Batch) -> Tensor:
        advantages = super().advantages(batch)
        if self.sample_deviation:
            centered = batch.advantages("none", self.baseline)
            deviation = ((centered**2).sum() / max(1, len(centered) - 1)).sqrt()
            advantages = torch.where(advantages == 0, 0.0, centered / deviation)
        if self.advantage_clip is not None:
            advantages = advantages.clamp(-self.advantage_clip, self.advantage_clip)
        return advantages

    def advantage_scale(self, batch: Batch) -> None:
        """Return None: advantages that are clipped, and ratios to other policies, have no expected gain."""

    def ratio_base(self, engine: TrainEngine, pool: Sequence[Turn], old: LogProbs) -> LogProbs:
        return {**old, **logprobs_by_key(engine, pool)} if self.ratio_per_turn else old

    def weights(self, carried: CarriedAdvantage, members: Tensor, generator: torch.Generator | None) -> Tensor:
        weights = carried.weights(members)
        if self.carry_total_clip is None:
            return weights
        low, high = self.carry_total_clip
        advantages = carried.advantages[members]
        ends = torch.stack([(1 - low) * advantages, (1 + high) * advantages]).sort(dim=0).values
        return weights.clamp(*ends)

    def absorb(self, carried: CarriedAdvantage, members: Tensor, objective: TrajectoryObjective, new: LogProbs) -> None:
        log_ratio = action_log_ratio(objective.turns.values(), new, objective.old, self.ratio)
        if self.carry_clip is not None:
            low, high = self.carry_clip
            log_ratio = log_ratio.clamp(math.log1p(-low), math.log1p(high))
        carried.absorb(members, log_ratio)


@dataclass(frozen=True, kw_only=True)
class ShuffledCarry(SeeUPO):
    """SeeUPO with M / A permuted at random among the trajectories of a pool whose A has the same sign.

    A control: the distribution of the multipliers is that of M, but they say nothing about their trajectories.
    """

    def weights(self, carried: CarriedAdvantage, members: Tensor, generator: torch.Generator | None) -> Tensor:
        weights, advantages = carried.weights(members), carried.advantages[members]
        for same_sign in (advantages > 0, advantages < 0):
            multipliers = (weights / advantages)[same_sign]
            order = torch.randperm(len(multipliers), generator=generator)
            weights[same_sign] = multipliers[order] * advantages[same_sign]
        return weights


@dataclass(frozen=True, kw_only=True)
class OtherCarryRatio(SeeUPO):
    """SeeUPO that carries another ratio than that of its objective.

    Attributes:
        carry_ratio: Ratio that M is multiplied by.
    """

    carry_ratio: Ratio = "product"

    def absorb(self, carried: CarriedAdvantage, members: Tensor, objective: TrajectoryObjective, new: LogProbs) -> None:
        carried.absorb(members, action_log_ratio(objective.turns.values(), new, objective.old, self.carry_ratio))


@dataclass(frozen=True, kw_only=True)
class MeasuredDrift(SeeUPO):
    """SeeUPO, with agents of one turn, that measures how far later updates moved each turn after its own.

    With one more forward pass it adds the metric `drift_rms` to each turn: the root mean square change of its log r.

    Attributes:
        drift_every: Iterations between measurements.
    """

    drift_every: int = 10

    def update(
        self,
        engine: TrainEngine,
        trajectories: Sequence[Trajectory],
        *,
        generator: torch.Generator | None = None,
        behavior: Behavior = ON_POLICY,
    ) -> Update:
        update = super().update(engine, trajectories, generator=generator, behavior=behavior)
        if engine.iteration % self.drift_every:
            return update
        drift = drift_rms(engine, update.trajectories, self.ratio)
        metrics = [
            StepMetrics(step.agent, {**step.values, "drift_rms": drift[step.agent]}) if step.agent in drift else step
            for step in update.metrics
        ]
        return replace(update, metrics=tuple(metrics))


def drift_rms(engine: TrainEngine, trajectories: Sequence[Trajectory], ratio: Ratio) -> dict[int, float]:
    """Return the drift of each turn index, from log-probs under the current weights and those in the credit records."""
    credited = [
        (trajectory.turns[credit.turn], torch.tensor(credit.new_logprobs, dtype=torch.float64), trajectory.multiplicity)
        for trajectory in trajectories
        if trajectory.credit is not None
        for credit in trajectory.credit.turns
    ]
    final = engine.logprobs([turn for turn, _, _ in credited]) if credited else []
    sums: dict[int, float] = {}
    counts: dict[int, float] = {}
    for (turn, after_update, count), at_end in zip(credited, final, strict=True):
        difference = at_end.double() - after_update
        # A token of probability 0 at both times has not drifted, although -inf - -inf is nan.
        difference = torch.where(at_end.double() == after_update, 0.0, difference)
        change = float(difference.sum() if ratio == "product" else difference.mean())
        sums[turn.index] = sums.get(turn.index, 0.0) + count * change**2
        counts[turn.index] = counts.get(turn.index, 0.0) + count
    return {index: math.sqrt(total / counts[index]) for index, total in sums.items()}
