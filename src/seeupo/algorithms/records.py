"""What an update did to each turn: metrics, and the credit record of each trajectory. All algorithms share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seeupo.algorithms.batch import Batch, LogProbs, action_mask, padded
from seeupo.algorithms.objective import RatioObjective
from seeupo.core import k3, masked_mean
from seeupo.types import Credit, StepMetrics, Trajectory, Turn, TurnCredit


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """One turn after an update: n turns, the trajectories [n] they belong to, and what became of them.

    Attributes:
        live: size of the turn's pool, turns of weight 0 included.
        before: the weights [n] that the actions were updated with: M in SeeUPO, advantages elsewhere.
        log_ratio: log r [n] after the update, as the algorithm defines r.
        clipped: [n] the share of each action that the clip holds: of its tokens, or 0 and 1 where it is clipped whole.
        new: log-probs after the update.
        steps: what the engine reported of the optimizer steps on this turn alone.
        after: M [n] that the turn left behind; None where nothing is carried.
    """

    index: int
    turns: Sequence[Turn]
    live: int
    members: Tensor
    before: Tensor
    log_ratio: Tensor
    clipped: Tensor
    new: LogProbs
    steps: Sequence[StepMetrics] = ()
    after: Tensor | None = None


def turn_records(
    batch: Batch, turns: Sequence[Turn], objective: RatioObjective, new: LogProbs, steps: Sequence[StepMetrics]
) -> list[TurnRecord]:
    """What became of each turn that was trained on."""
    used = {turn.key for turn in turns}
    records = []
    for t, pool in enumerate(batch.pools):
        if members := [turn for turn in pool if turn.key in used]:
            outcome = objective.outcome(members, new)
            records.append(
                TurnRecord(
                    index=t,
                    turns=members,
                    live=len(pool),
                    members=batch.members(members),
                    before=outcome.weights,
                    log_ratio=outcome.log_ratio,
                    clipped=outcome.clipped,
                    new=new,
                    steps=[step for step in steps if step.agent == t],
                )
            )
    return records


def turn_metrics(batch: Batch, record: TurnRecord, old: LogProbs, reference: LogProbs) -> dict[str, float]:
    """Numbers of one turn. docs/algorithms/README.md says what each means."""
    counts, ratio = batch.counts[record.members], record.log_ratio.exp()
    values = {
        "live_samples": float(record.live),
        "used_samples": float(len(record.turns)),
        "ratio_mean": mean_and_sd(ratio, counts)[0],
        "ratio_min": float(ratio.min()),
        "ratio_max": float(ratio.max()),
        "clip_fraction": mean_and_sd(record.clipped.double(), counts)[0],
        **mean_of_steps(record.steps),
        # The tokens come from theta_k: k3 then estimates KL(theta_k || new policy), per token.
        "kl": _mean_kl(record.turns, old, record.new, counts),
    }
    if reference:
        values["kl_reference"] = _mean_kl(record.turns, record.new, reference, counts)
    return values


def iteration_metrics(batch: Batch, advantages: Tensor, optimizer_steps: int) -> dict[str, float]:
    """Numbers of the iteration as a whole, for advantages [N] of its trajectories."""
    return {
        "advantage_sd": mean_and_sd(advantages, batch.counts)[1],
        "zero_advantage_fraction": float(batch.counts[advantages == 0].sum() / batch.counts.sum()),
        "optimizer_steps": float(optimizer_steps),
    }


def mean_of_steps(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """What the engine reported, averaged over the steps that reported it."""
    means = {}
    for name in sorted({name for step in steps for name in step.values}):
        reported = [step.values[name] for step in steps if name in step.values]
        means[name] = sum(reported) / len(reported)
    return means


def mean_and_sd(values: Tensor, counts: Tensor) -> tuple[float, float]:
    """Weighted mean and deviation of the finite values: an action may have become impossible, with log r = -inf."""
    finite = torch.isfinite(values)
    values, counts = values[finite], counts[finite]
    if len(values) == 0:
        return 0.0, 0.0
    mean = (counts * values).sum() / counts.sum()
    return float(mean), float(((counts * (values - mean) ** 2).sum() / counts.sum()).sqrt())


def with_credit(batch: Batch, advantages: Tensor, records: Sequence[TurnRecord]) -> tuple[Trajectory, ...]:
    """The trajectories with their credit records: A, and per turn in update order what its update did."""
    credits: list[list[TurnCredit]] = [[] for _ in batch.trajectories]
    for record in records:
        after = [None] * len(record.turns) if record.after is None else record.after.tolist()
        columns = zip(
            record.turns,
            record.members.tolist(),
            record.log_ratio.exp().tolist(),
            record.before.tolist(),
            after,
            (record.clipped > 0).tolist(),
            strict=True,
        )
        for turn, member, ratio, weight, left, clipped in columns:
            logprobs = tuple(record.new[turn.key].tolist())
            credits[member].append(TurnCredit(record.index, ratio, weight, left, clipped, logprobs))
    return tuple(
        replace(trajectory, credit=Credit(advantage, tuple(credit)))
        for trajectory, advantage, credit in zip(batch.trajectories, advantages.tolist(), credits, strict=True)
    )


def _mean_kl(turns: Sequence[Turn], sampled_from: LogProbs, other: LogProbs, counts: Tensor) -> float:
    kl_NL = k3(padded(turns, sampled_from).double(), padded(turns, other).double())
    return mean_and_sd(masked_mean(kl_NL, action_mask(turns)), counts)[0]
