"""A trust region around theta_k: the optimizer steps of one virtual agent are shrunk until they are within it.

    theta = before + alpha * (after - before),     alpha = 1, 1/2, 1/4, ...

The first theta is taken whose KL(theta_k || theta) on the pool is within the limit and whose unclipped surrogate
mean[r M] is not below that of `before`. If none is, the agent keeps its weights. An agent whose KL exceeds the limit
before its steps, because other agents' steps moved shared weights, is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import LogProbs, action_mask, logprobs_by_key, padded
from seeupo.algorithms.common.objective import TrajectoryObjective, action_log_ratio
from seeupo.algorithms.common.records import TakenSteps
from seeupo.config.option_types import NonNegativeInt, Options, Range
from seeupo.core.ratios import k3
from seeupo.protocols import TrainEngine
from seeupo.types import StepMetrics, Turn


@dataclass(frozen=True, kw_only=True)
class TrustRegionSettings(Options):
    """Limits of the change of the policy by a turn's optimizer steps; steps beyond them are shrunk.

    Attributes:
        kl: Largest KL(theta_k || theta), summed over a turn's tokens and averaged over the turns of the pool.
        backtracks: Number of times that steps are halved before they are undone.
    """

    kl: Annotated[float, Range(0, exclude_low=True)] = 0.01
    backtracks: NonNegativeInt = 6


def take_within(
    region: TrustRegionSettings,
    steps: Iterable[StepMetrics],
    engine: TrainEngine,
    objective: TrajectoryObjective,
    *,
    pool: Sequence[Turn],
    start: LogProbs,
    total: float,
) -> TakenSteps:
    """Take an agent's optimizer steps, and shrink them until they are within the trust region.

    Args:
        region: The limits.
        steps: The steps, which are taken as they are iterated over.
        engine: The engine that takes them.
        objective: What they maximize.
        pool: All turns of the agent, those with M = 0 included.
        start: Log-probs of the pool before the steps.
        total: Number of trajectories in the batch, by multiplicity.
    """
    if "shrink" not in engine.capabilities:
        raise TypeError(f'{type(engine).__name__} lacks the capability "shrink", which a trust region needs')

    def kept(steps: Sequence[StepMetrics], new: LogProbs, scale: float) -> TakenSteps:
        gain = surrogate_gain(objective, new, start, total)
        metrics = {"step_scale": scale, "pool_kl": pool_kl(objective, pool, new), "surrogate_gain": gain}
        return TakenSteps(steps=steps, new=new, region=metrics)

    if pool_kl(objective, pool, start) > region.kl:
        return kept((), start, 0.0)
    with engine.shrinkable_steps() as shrink:
        taken = list(steps)
        for halvings in range(region.backtracks + 1):
            if halvings:
                shrink(0.5)
            new = logprobs_by_key(engine, pool)
            # Both comparisons are false for nan.
            if pool_kl(objective, pool, new) <= region.kl and surrogate_gain(objective, new, start, total) >= 0:
                return kept(taken, new, 0.5**halvings)
        shrink(0.0)
    return kept(taken, start, 0.0)


def pool_kl(objective: TrajectoryObjective, pool: Sequence[Turn], new: LogProbs) -> float:
    """Return the mean over turns of the k3 estimates of KL(theta_k || theta), summed over their tokens."""
    counts_N = _counts(objective, (turn.trajectory for turn in pool))
    kl_NL = k3(padded(pool, objective.old).double(), padded(pool, new).double())
    kl_N = torch.where(action_mask(pool), kl_NL, 0.0).sum(1)
    return float((counts_N * kl_N).sum() / counts_N.sum())


def surrogate_gain(objective: TrajectoryObjective, new: LogProbs, start: LogProbs, total: float) -> float:
    """Return the unclipped mean[r M] over all trajectories minus its value at the log-probs `start`."""
    weights = torch.tensor([objective.advantages[name] for name in objective.turns], dtype=torch.float64)
    after, before = (
        action_log_ratio(objective.turns.values(), logprobs, objective.old, objective.ratio).exp()
        for logprobs in (new, start)
    )
    # M = 0 adds 0 for any ratio: 0 * inf would be nan.
    gains = torch.where(weights == 0, 0.0, weights * (after - before))
    return float((_counts(objective, objective.turns) * gains).sum() / total)


def _counts(objective: TrajectoryObjective, trajectories: Iterable[str]) -> Tensor:
    return torch.tensor([objective.multiplicities[name] for name in trajectories], dtype=torch.float64)
