"""What a sweep over the turns did: metrics per turn, drift, and the credit record of each trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seeupo.algorithms.batch import Batch, LogProbs, action_mask, by_key, padded
from seeupo.algorithms.objective import Ratio, action_log_ratio
from seeupo.core import clip_binds, k3, masked_mean
from seeupo.core.checks import Clip
from seeupo.types import Credit, Sample, StepMetrics, TrainEngine, Trajectory, TurnCredit


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """One turn's update: n samples, the trajectories [n] they belong to, and what became of them.

    Attributes:
        live: size of the turn's pool, samples of weight 0 included.
        before, after: M [n] that the turn was updated with, and M [n] that it left behind.
        log_ratio, carry_log_ratio: log r [n] after the update, as in the objective and as in M.
        new: log-probs after the update.
        steps: what the engine reported of each optimizer step.
    """

    turn: int
    samples: Sequence[Sample]
    live: int
    members: Tensor
    before: Tensor
    after: Tensor
    log_ratio: Tensor
    carry_log_ratio: Tensor
    new: LogProbs
    steps: Sequence[StepMetrics]


def drift_after_sweep(
    engine: TrainEngine, records: Sequence[TurnRecord], old: LogProbs, carry_ratio: Ratio
) -> dict[int, Tensor]:
    """Per turn, log r [n] at the end of the sweep minus log r right after the turn's own update.

    The turn that was updated last cannot have moved since, so it is not computed again.
    """
    moved = [sample for record in records[:-1] for sample in record.samples]
    final = by_key(moved, engine.logprobs(moved)) if moved else {}
    drift = {record.turn: torch.zeros_like(record.carry_log_ratio) for record in records}
    for record in records[:-1]:
        at_end = action_log_ratio(record.samples, final, old, carry_ratio)
        # Two actions of probability 0 have not drifted apart, though -inf minus -inf says nothing.
        drift[record.turn] = torch.where(at_end == record.carry_log_ratio, 0.0, at_end - record.carry_log_ratio)
    return drift


def sweep_metrics(
    batch: Batch,
    advantages: Tensor,
    records: Sequence[TurnRecord],
    old: LogProbs,
    reference: LogProbs,
    *,
    drift: Mapping[int, Tensor],
    clip: Clip | None,
) -> tuple[StepMetrics, ...]:
    """One entry per updated turn, in update order, and one for the iteration as a whole (agent None).

    docs/algorithms/seeupo.md says what each number means.
    """
    counts = torch.tensor(list(batch.multiplicities.values()), dtype=torch.float64)
    turns = []
    for record in records:
        values = _turn_metrics(record, advantages, counts, clip)
        if record.turn in drift:
            values["drift_rms"] = _mean_and_sd(drift[record.turn] ** 2, counts[record.members])[0] ** 0.5
        # The tokens come from theta_k: k3 then estimates KL(theta_k || new policy), per token.
        values["kl"] = _mean_kl(record.samples, old, record.new, counts[record.members])
        if reference:
            values["kl_reference"] = _mean_kl(record.samples, record.new, reference, counts[record.members])
        turns.append(StepMetrics(record.turn, values))

    absorbed, final = torch.zeros_like(advantages), torch.zeros_like(advantages)
    for record in records:
        kept = (record.before != 0) & (record.after != 0)
        absorbed[record.members[kept]] += (record.after / record.before)[kept].log()
        if drift:
            final[record.members] += record.carry_log_ratio + drift[record.turn]
    used = advantages != 0
    overall = {
        "advantage_sd": _mean_and_sd(advantages, counts)[1],
        "zero_advantage_fraction": float(counts[~used].sum() / counts.sum()),
        "optimizer_steps": float(sum(len(record.steps) for record in records)),
        "turns_updated": float(len(records)),
        "carry_log_ratio_sd": _mean_and_sd(absorbed[used], counts[used])[1],
    }
    if drift:
        overall["final_log_ratio_sd"] = _mean_and_sd(final[used], counts[used])[1]
    return *turns, StepMetrics(None, overall)


def _turn_metrics(record: TurnRecord, advantages: Tensor, all_counts: Tensor, clip: Clip | None) -> dict[str, float]:
    counts = all_counts[record.members]
    ratio = record.log_ratio.exp()
    values = {
        "live_samples": float(record.live),
        "used_samples": float(len(record.samples)),
        "ratio_mean": _mean_and_sd(ratio, counts)[0],
        "ratio_min": float(ratio.min()),
        "ratio_max": float(ratio.max()),
        "clip_fraction": _mean_and_sd(clip_binds(record.log_ratio, record.before, clip=clip).double(), counts)[0],
    }
    used = advantages[record.members] != 0
    if used.any():
        # M / A: what the turns updated before this one have multiplied the advantage with.
        multiplier = record.before[used] / advantages[record.members][used]
        values["carry_mean"], values["carry_sd"] = _mean_and_sd(multiplier, counts[used])
        values["carry_max"] = float(multiplier.max())
        # Kish's effective sample size of those multipliers, as a fraction of the samples.
        square = (counts[used] * multiplier**2).sum() * counts[used].sum()
        values["ess_fraction"] = float((counts[used] * multiplier).sum() ** 2 / square) if square > 0 else 0.0
    for name in sorted({name for step in record.steps for name in step.values}):
        reported = [step.values[name] for step in record.steps if name in step.values]
        values[name] = sum(reported) / len(reported)
    return values


def _mean_kl(samples: Sequence[Sample], sampled_from: LogProbs, other: LogProbs, counts: Tensor) -> float:
    kl_NL = k3(padded(samples, sampled_from).double(), padded(samples, other).double())
    return _mean_and_sd(masked_mean(kl_NL, action_mask(samples)), counts)[0]


def _mean_and_sd(values: Tensor, counts: Tensor) -> tuple[float, float]:
    """Weighted mean and deviation of the finite values: an action may have become impossible, with log r = -inf."""
    finite = torch.isfinite(values)
    values, counts = values[finite], counts[finite]
    if len(values) == 0:
        return 0.0, 0.0
    mean = (counts * values).sum() / counts.sum()
    return float(mean), float(((counts * (values - mean) ** 2).sum() / counts.sum()).sqrt())


def with_credit(
    batch: Batch, advantages: Tensor, records: Sequence[TurnRecord], clip: Clip | None
) -> tuple[Trajectory, ...]:
    """The trajectories with their credit records: A, and per turn in update order what its update did."""
    turns: list[list[TurnCredit]] = [[] for _ in batch.trajectories]
    for record in records:
        columns = zip(
            record.samples,
            record.members.tolist(),
            record.log_ratio.exp().tolist(),
            record.before.tolist(),
            record.after.tolist(),
            clip_binds(record.log_ratio, record.before, clip=clip).tolist(),
            strict=True,
        )
        for sample, member, ratio, before, after, clipped in columns:
            logprobs = tuple(record.new[sample.key].tolist())
            turns[member].append(TurnCredit(record.turn, ratio, before, after, clipped, logprobs))
    return tuple(
        replace(trajectory, credit=Credit(advantage, tuple(credit)))
        for trajectory, advantage, credit in zip(batch.trajectories, advantages.tolist(), turns, strict=True)
    )
