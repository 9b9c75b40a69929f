"""Metrics of an update, and the credit of each trajectory; shared by all algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import Batch, LogProbs, action_mask, by_trajectory, padded
from seeupo.algorithms.common.objective import RatioObjective, UpdateEffect
from seeupo.core.ratios import k3, masked_mean
from seeupo.types import Credit, StepMetrics, Trajectory, Turn, TurnCredit


@dataclass(frozen=True, kw_only=True)
class TakenSteps:
    """The optimizer steps on one pool.

    Attributes:
        steps: Metrics of the steps.
        new: Log-probs after them.
        region: Metrics of the trust region: `step_scale`, `pool_kl` and `surrogate_gain`; empty without one.
    """

    steps: Sequence[StepMetrics]
    new: LogProbs
    region: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """The n updated actions of one pool. An action is one turn, or all turns of a virtual agent in a trajectory.

    Attributes:
        index: Turn index of the pool, or the virtual agent.
        actions: The updated actions [n], as turns.
        live: Size of the pool in turns, those of weight 0 included.
        members: Indices [n] of the actions' trajectories in the batch.
        effect: Weights, ratios and clipping [n].
        taken: The optimizer steps on this pool alone, and the log-probs after them.
        after: M [n] after the update; None for algorithms that carry nothing from turn to turn.
    """

    index: int
    actions: Sequence[Sequence[Turn]]
    live: int
    members: Tensor
    effect: UpdateEffect
    taken: TakenSteps
    after: Tensor | None = None

    @property
    def turns(self) -> list[Turn]:
        """The updated turns."""
        return [turn for turns in self.actions for turn in turns]


def turn_record(
    batch: Batch,
    index: int,
    pool: Sequence[Turn],
    used: Sequence[Turn],
    objective: RatioObjective,
    *,
    taken: TakenSteps,
    after: Tensor | None = None,
) -> TurnRecord:
    """Return the record of a pool, of which the turns `used` were updated."""
    actions = list(by_trajectory(used).values())
    first_turns = [turns[0] for turns in actions]
    return TurnRecord(
        index=index,
        actions=actions,
        live=len(pool),
        members=batch.members(first_turns),
        effect=objective.effect(first_turns, taken.new),
        taken=taken,
        after=after,
    )


def turn_metrics(batch: Batch, record: TurnRecord, old: LogProbs, reference: LogProbs) -> dict[str, float]:
    """Return the metrics of one turn; docs/algorithms/README.md explains each."""
    counts, ratio = batch.counts[record.members], record.effect.log_ratio.exp()
    values = {
        "live_turns": float(record.live),
        "used_turns": float(len(record.turns)),
        "ratio_mean": mean_and_sd(ratio, counts)[0],
        "ratio_min": float(ratio.min()),
        "ratio_max": float(ratio.max()),
        "clip_fraction": mean_and_sd(record.effect.clipped, counts)[0],
        **mean_of_steps(record.taken.steps),
        **record.taken.region,
        # The tokens were sampled from theta_k, so k3 estimates KL(theta_k || new policy), per token.
        "kl": _mean_kl(batch, record.turns, old, record.taken.new),
    }
    if reference:
        values["kl_reference"] = _mean_kl(batch, record.turns, record.taken.new, reference)
    return values


def iteration_metrics(batch: Batch, advantages: Tensor, optimizer_steps: int) -> dict[str, float]:
    """Return the metrics of the whole iteration, for advantages [N] of its trajectories."""
    return {
        "advantage_sd": mean_and_sd(advantages, batch.counts)[1],
        "zero_advantage_fraction": float(batch.counts[advantages == 0].sum() / batch.counts.sum()),
        "optimizer_steps": float(optimizer_steps),
    }


def mean_of_steps(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """Return the engine's metrics, each averaged over the steps that reported it."""
    means = {}
    for name in sorted({name for step in steps for name in step.values}):
        reported = [step.values[name] for step in steps if name in step.values]
        means[name] = sum(reported) / len(reported)
    return means


def mean_and_sd(values: Tensor, counts: Tensor) -> tuple[float, float]:
    """Return the weighted mean and standard deviation of the finite values; an impossible action has log r = -inf."""
    finite = torch.isfinite(values)
    values, counts = values[finite], counts[finite]
    if len(values) == 0:
        return 0.0, 0.0
    mean = (counts * values).sum() / counts.sum()
    return float(mean), float(((counts * (values - mean) ** 2).sum() / counts.sum()).sqrt())


def with_credit(batch: Batch, advantages: Tensor, records: Sequence[TurnRecord]) -> tuple[Trajectory, ...]:
    """Return the trajectories with their credit: A, and the effect of each turn's update in update order."""
    credits: list[list[TurnCredit]] = [[] for _ in batch.trajectories]
    for record in records:
        after = [None] * len(record.members) if record.after is None else record.after.tolist()
        columns = zip(
            record.actions,
            record.members.tolist(),
            record.effect.log_ratio.exp().tolist(),
            record.effect.weights.tolist(),
            after,
            (record.effect.clipped > 0).tolist(),
            strict=True,
        )
        for turns, member, ratio, weight, carried_after, clipped in columns:
            for turn in turns:
                logprobs = tuple(record.taken.new[turn.key].tolist())
                credits[member].append(TurnCredit(turn.index, ratio, weight, carried_after, clipped, logprobs))
    return tuple(
        replace(trajectory, credit=Credit(advantage, tuple(credit)))
        for trajectory, advantage, credit in zip(batch.trajectories, advantages.tolist(), credits, strict=True)
    )


def _mean_kl(batch: Batch, turns: Sequence[Turn], sampled_from: LogProbs, other: LogProbs) -> float:
    kl_NL = k3(padded(turns, sampled_from).double(), padded(turns, other).double())
    return mean_and_sd(masked_mean(kl_NL, action_mask(turns)), batch.counts[batch.members(turns)])[0]
