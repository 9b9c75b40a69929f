"""SeeUPO's metrics: M after each turn, the drift of turns since their own update, and each turn's expected gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import Batch, LogProbs, by_key, by_trajectory
from seeupo.algorithms.common.objective import Ratio, action_log_ratio
from seeupo.algorithms.common.records import TurnRecord, iteration_metrics, mean_and_sd, turn_metrics
from seeupo.protocols import TrainEngine
from seeupo.types import StepMetrics, Turn


@dataclass(frozen=True, kw_only=True)
class CarryRecord(TurnRecord):
    """A record of a sweep.

    Attributes:
        carry_log_ratio: The log r [n] that M was multiplied by.
        region: Metrics of the trust region; empty without one.
    """

    after: Tensor
    carry_log_ratio: Tensor
    region: Mapping[str, float]

    @property
    def actions(self) -> list[list[Turn]]:
        """The updated actions, as turns."""
        return list(by_trajectory(self.turns).values())


def drift_after_sweep(
    engine: TrainEngine, records: Sequence[CarryRecord], old: LogProbs, carry_ratio: Ratio
) -> dict[int, Tensor]:
    """Return, by turn index, log r [n] at the end of the sweep minus log r right after the turn's own update.

    The turn updated last has drift 0 and is not computed again.
    """
    moved = [turn for record in records[:-1] for turn in record.turns]
    final = by_key(moved, engine.logprobs(moved)) if moved else {}
    drift = {record.index: torch.zeros_like(record.carry_log_ratio) for record in records}
    for record in records[:-1]:
        at_end = action_log_ratio(record.actions, final, old, carry_ratio)
        # An action of probability 0 at both times has not drifted, although -inf - -inf is nan.
        drift[record.index] = torch.where(at_end == record.carry_log_ratio, 0.0, at_end - record.carry_log_ratio)
    return drift


def sweep_metrics(
    batch: Batch,
    advantages: Tensor,
    records: Sequence[CarryRecord],
    old: LogProbs,
    reference: LogProbs,
    *,
    drift: Mapping[int, Tensor],
    scale: float | None,
    extra: Mapping[str, float],
) -> tuple[StepMetrics, ...]:
    """Return metrics per updated turn, in update order, and for the whole iteration (agent None).

    `scale` is what advantages were divided by; None if it is not the same for all. docs/algorithms/seeupo.md explains
    each metric.
    """
    per_turn, all_gains = [], torch.zeros_like(advantages)
    for record in records:
        values = turn_metrics(batch, record, old, reference) | _carry_metrics(batch, record, advantages)
        values |= record.region
        if scale is not None:
            gains = _gains(batch, record, old)
            all_gains += gains
            values |= _expected_gain(batch, gains, scale)
        if record.index in drift:
            values["drift_rms"] = mean_and_sd(drift[record.index] ** 2, batch.counts[record.members])[0] ** 0.5
        per_turn.append(StepMetrics(record.index, values))

    absorbed, final = torch.zeros_like(advantages), torch.zeros_like(advantages)
    for record in records:
        before, after = record.effect.weights, record.after
        kept = (before != 0) & (after != 0)
        absorbed[record.members[kept]] += (after / before)[kept].log()
        if drift:
            final[record.members] += record.carry_log_ratio + drift[record.index]
    used = advantages != 0
    overall = iteration_metrics(batch, advantages, sum(len(record.steps) for record in records)) | dict(extra)
    moved = [record for record in records if record.region.get("step_scale") != 0]
    overall["turns_updated"] = float(len(moved))
    if any(record.region for record in records):
        overall["skipped_turns"] = float(sum(not record.steps for record in records))
        overall["undone_turns"] = float(len(records) - len(moved)) - overall["skipped_turns"]
    if scale is not None:
        overall |= _expected_gain(batch, all_gains, scale)
    overall["carry_log_ratio_sd"] = mean_and_sd(absorbed[used], batch.counts[used])[1]
    if drift:
        overall["final_log_ratio_sd"] = mean_and_sd(final[used], batch.counts[used])[1]
    return *per_turn, StepMetrics(None, overall)


def _gains(batch: Batch, record: CarryRecord, old: LogProbs) -> Tensor:
    """Return (r - 1) M [N] with the unclipped product ratio r; 0 for a trajectory without an updated action."""
    gains = torch.zeros_like(batch.counts)
    change = action_log_ratio(record.actions, record.new, old, "product").expm1()
    gains[record.members] = torch.where(record.effect.weights == 0, 0.0, change * record.effect.weights)
    return gains


def _expected_gain(batch: Batch, gains: Tensor, scale: float) -> dict[str, float]:
    """Return the mean of the gains [N] in units of the reward, and its standard error over tasks if there are several.

    Tasks are the independent units: the error is that of a mean over clusters.
    """
    numbers = {task: n for n, task in enumerate(dict.fromkeys(tau.task for tau in batch.trajectories))}
    tasks, total = torch.tensor([numbers[tau.task] for tau in batch.trajectories]), batch.counts.sum()
    mean = (batch.counts * gains).sum() / total
    values = {"expected_gain": float(mean) * scale}
    if len(numbers) > 1:
        deviations = gains.new_zeros(len(numbers)).index_add(0, tasks, batch.counts * (gains - mean))
        variance = len(numbers) / (len(numbers) - 1) * (deviations**2).sum() / total**2
        values["expected_gain_se"] = float(variance.sqrt()) * scale
    return values


def _carry_metrics(batch: Batch, record: CarryRecord, advantages: Tensor) -> dict[str, float]:
    """Return statistics of M / A, the product of the ratios of the turns updated before this one."""
    used = advantages[record.members] != 0
    if not used.any():
        return {}
    counts = batch.counts[record.members][used]
    multiplier = record.effect.weights[used] / advantages[record.members][used]
    mean, sd = mean_and_sd(multiplier, counts)
    # Kish's effective sample size of the multipliers, as a fraction of the turns.
    square = (counts * multiplier**2).sum() * counts.sum()
    ess = float((counts * multiplier).sum() ** 2 / square) if square > 0 else 0.0
    return {"carry_mean": mean, "carry_sd": sd, "carry_max": float(multiplier.max()), "ess_fraction": ess}
