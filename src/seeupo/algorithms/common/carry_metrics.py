"""SeeUPO's metrics: M after each turn, and each turn's expected gain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seeupo.algorithms.common.base import ObjectiveInputs
from seeupo.algorithms.common.batch import Batch, LogProbs
from seeupo.algorithms.common.behavior import importance_metrics
from seeupo.algorithms.common.objective import action_log_ratio
from seeupo.algorithms.common.records import TurnRecord, iteration_metrics, mean_and_sd, turn_metrics
from seeupo.types import StepMetrics


def sweep_metrics(
    batch: Batch, advantages: Tensor, records: Sequence[TurnRecord], inputs: ObjectiveInputs, scale: float | None
) -> tuple[StepMetrics, ...]:
    """Return metrics per updated turn, in update order, and for the whole iteration (agent None).

    `scale` is what advantages were divided by; None if it is not the same for all. docs/reference/update-metrics.md
    explains each metric.
    """
    old = inputs["old"]
    per_turn = []
    all_gains, absorbed = torch.zeros_like(advantages), torch.zeros_like(advantages)
    for record in records:
        values = turn_metrics(batch, record, old, inputs["reference"]) | _carry_metrics(batch, record, advantages)
        if scale is not None:
            gains = _gains(batch, record, old)
            all_gains += gains
            values |= _expected_gain(batch, gains, scale)
        per_turn.append(StepMetrics(record.index, values, record.turns[0].agent_role))
        if record.after is not None:
            before = record.effect.weights
            kept = (before != 0) & (record.after != 0)
            absorbed[record.members[kept]] += (record.after / before)[kept].log()

    used = advantages != 0
    regions = [record.taken.region for record in records]
    moved = sum(region.get("step_scale") != 0 for region in regions)
    overall = iteration_metrics(batch, advantages, sum(len(record.taken.steps) for record in records))
    overall |= importance_metrics(inputs["importance"]) | {"turns_updated": float(moved)}
    if any(regions):
        overall["skipped_turns"] = float(sum(not record.taken.steps for record in records))
        overall["undone_turns"] = float(len(records) - moved) - overall["skipped_turns"]
    if scale is not None:
        overall |= _expected_gain(batch, all_gains, scale)
    overall["carry_log_ratio_sd"] = mean_and_sd(absorbed[used], batch.counts[used])[1]
    return *per_turn, StepMetrics(None, overall)


def _gains(batch: Batch, record: TurnRecord, old: LogProbs) -> Tensor:
    """Return (r - 1) M [N] with the unclipped product ratio r; 0 for a trajectory without an updated action."""
    gains = torch.zeros_like(batch.counts)
    change = action_log_ratio(record.actions, record.taken.new, old, "product").expm1()
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


def _carry_metrics(batch: Batch, record: TurnRecord, advantages: Tensor) -> dict[str, float]:
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
