"""SeeUPO's metrics: the carried advantage M after each turn, and the drift of turns since their own update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import Batch, LogProbs, by_key
from seeupo.algorithms.common.objective import Ratio, action_log_ratio
from seeupo.algorithms.common.records import TurnRecord, iteration_metrics, mean_and_sd, turn_metrics
from seeupo.types import StepMetrics, TrainEngine


@dataclass(frozen=True, kw_only=True)
class CarryRecord(TurnRecord):
    """A turn record of a sweep; `carry_log_ratio` [n] is the log r that M was multiplied by."""

    after: Tensor
    carry_log_ratio: Tensor


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
        at_end = action_log_ratio(record.turns, final, old, carry_ratio)
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
) -> tuple[StepMetrics, ...]:
    """Return metrics per updated turn, in update order, and for the whole iteration (agent None).

    docs/algorithms/seeupo.md explains each.
    """
    per_turn = []
    for record in records:
        values = turn_metrics(batch, record, old, reference) | _carry_metrics(batch, record, advantages)
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
    overall = iteration_metrics(batch, advantages, sum(len(record.steps) for record in records))
    overall["turns_updated"] = float(len(records))
    overall["carry_log_ratio_sd"] = mean_and_sd(absorbed[used], batch.counts[used])[1]
    if drift:
        overall["final_log_ratio_sd"] = mean_and_sd(final[used], batch.counts[used])[1]
    return *per_turn, StepMetrics(None, overall)


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
