"""SeeUPO: Algorithm 1 of the paper (SeeUPPO-GRAE), written against the TrainEngine protocol only.

A trajectory of T turns is seen as the joint action of T virtual agents, one per turn, that share its reward. The turns
are updated one after another, in reverse order of execution. Turn t maximises

    E over pool t of  min( r^t M^{t+1}, clip(r^t, 1 - low, 1 + high) M^{t+1} ),   r^t = pi_theta(a^t) / pi_theta_k(a^t)

where M^{T+1} is the group-relative advantage of the whole trajectory. After each update

    M^t = r^t M^{t+1}

so that an earlier turn is judged by what the later turns have just become. Both ratios are relative to theta_k, the
policy that sampled; its log-probs are computed once, before the first update, by the engine that trains: those which a
sampler recorded may come from other kernels.

What stands here and not in Algorithm 1: the batch normalisation of A, which the paper describes in its text (the mean
is 0, so there is none to subtract); M after the last turn, for the records; other orders, and the options below. Turns
are counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch

from seeupo.algorithms.batch import Batch, by_key
from seeupo.algorithms.diagnostics import CarryRecord, drift_after_sweep, sweep_metrics
from seeupo.algorithms.objective import Ratio, SequenceObjective, action_log_ratio
from seeupo.algorithms.records import with_credit
from seeupo.core import CarriedAdvantage, clip_binds, turn_order
from seeupo.core.advantages import Baseline, Normalize
from seeupo.core.checks import Clip, check_at_least, check_choice, check_clip, check_count
from seeupo.core.order import Order
from seeupo.types import Need, TrainEngine, Trajectory, Turn, Update


@dataclass(frozen=True, kw_only=True)
class SeeUPO:
    """The options of SeeUPO. The defaults are the paper's.

    Attributes:
        order: in which the turns are updated: "reverse" (backward induction), "natural" or "random".
        normalize: of the advantages: "batch", "group" or "none".
        baseline: the group's "mean", or "leave_one_out", which removes the mean's (G-1)/G shrinkage of the gradient.
        ratio: r^t in the objective: "length_normalized" as in GSPO, or "product", of which the proofs speak.
        carry_ratio: the ratio that M is multiplied with; none takes `ratio`.
        clip: (low, high) around 1; none for no clip. docs/algorithms/seeupo.md says how often 0.2 binds for either
            ratio.
        kl_coef: weight of the k3 estimate of the KL to the engine's reference policy. Its gradient is in expectation
            that of KL(reference || policy). 0 switches it off and costs nothing.
        entropy_coef: weight of the mean token entropy. 0 switches it off and costs nothing.
        steps_per_turn: optimizer steps per turn and epoch, on mini-batches of trajectories.
        epochs: passes over each pool.
        carry: False keeps M = A, the ablation "turn by turn, without M".
        carry_clip: (low, high) bounds on each factor of M; the paper has none.
        min_live: a pool with fewer turns is passed over: its turn is not updated and its ratio counts as 1.
        measure_drift: compute the log-probs once more after the sweep, to show how far turns that were updated early
            have been moved by later updates (0 with separate parameters). Costs one forward pass.
    """

    order: Order = "reverse"
    normalize: Normalize = "batch"
    baseline: Baseline = "mean"
    ratio: Ratio = "length_normalized"
    carry_ratio: Ratio | None = None
    clip: Clip | None = (0.2, 0.2)
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    steps_per_turn: int = 1
    epochs: int = 1
    carry: bool = True
    carry_clip: Clip | None = None
    min_live: int = 1
    measure_drift: bool = True

    def __post_init__(self) -> None:
        check_choice("order", self.order, get_args(Order))
        check_choice("normalize", self.normalize, get_args(Normalize))
        check_choice("baseline", self.baseline, get_args(Baseline))
        check_choice("ratio", self.ratio, get_args(Ratio))
        if self.carry_ratio is not None:
            check_choice("carry_ratio", self.carry_ratio, get_args(Ratio))
        check_clip("clip", self.clip)
        check_clip("carry_clip", self.carry_clip)
        for name in ("kl_coef", "entropy_coef"):
            check_at_least(name, getattr(self, name), 0)
        for name in ("steps_per_turn", "epochs", "min_live"):
            check_count(name, getattr(self, name), 1)
        for name in ("carry", "measure_drift"):
            check_choice(name, getattr(self, name), (True, False))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference"} if self.kl_coef else ())

    def update(
        self, engine: TrainEngine, trajectories: Sequence[Trajectory], *, generator: torch.Generator | None = None
    ) -> Update:
        """One iteration k: from the trajectories that theta_k sampled, move the engine to theta_{k+1}.

        `generator` draws the random order and the mini-batches.
        """
        # Data collection: the turns are organised into T pools, one per turn.
        batch = Batch(trajectories)

        # Joint advantage estimation: A = r - mean r of the same s_0, and M^{T+1} = A.
        advantages = batch.advantages(self.normalize, self.baseline)
        carried = CarriedAdvantage(advantages)

        def needed(pool: Sequence[Turn]) -> list[Turn]:
            """Samples with M = 0 have no gradient: only a KL or entropy term wants them computed."""
            if self.kl_coef or self.entropy_coef:
                return list(pool)
            weights = carried.weights(batch.members(pool)).tolist()
            return [turn for turn, weight in zip(pool, weights, strict=True) if weight != 0]

        # log pi_{theta_k}, fixed once for all turns, before any of them moves.
        turns = [turn for pool in batch.pools for turn in needed(pool)]
        old = by_key(turns, engine.logprobs(turns)) if turns else {}
        reference = by_key(turns, engine.logprobs(turns, policy="reference")) if turns and self.kl_coef else {}

        # Sequential policy update; in reverse order t = T, T-1, ..., 1.
        carry_ratio = self.ratio if self.carry_ratio is None else self.carry_ratio
        records: list[CarryRecord] = []
        for t in turn_order(len(batch.pools), self.order, generator=generator):
            pool = needed(batch.pools[t])
            if not any(turn.action_ids for turn in pool) or len(batch.pools[t]) < self.min_live:
                continue
            members = batch.members(pool)
            before = carried.weights(members)  # M^{t+1} in reverse order; in any order, what the last turn left
            objective = SequenceObjective(
                old=old,
                advantages={turn.key: m for turn, m in zip(pool, before.tolist(), strict=True)},
                multiplicities=batch.multiplicities,
                ratio=self.ratio,
                clip=self.clip,
                reference=reference,
                kl_coef=self.kl_coef,
                entropy_coef=self.entropy_coef,
            )

            # Ascend the clipped objective of pool t, from theta^{t+1}_{k+1} to theta^t_{k+1}. The divisor is the number
            # of trajectories: one without turn t is the paper's no-op, which adds 0 and counts.
            steps = [
                engine.step(part, objective, normalizer=normalizer, agent=t)
                for _ in range(self.epochs)
                for part, normalizer in batch.minibatches(pool, self.steps_per_turn, generator)
            ]

            # M^t = r^t M^{t+1}, with the ratio that this update produced.
            new = by_key(pool, engine.logprobs(pool))
            log_ratio, carry_log_ratio = (action_log_ratio(pool, new, old, r) for r in (self.ratio, carry_ratio))
            if self.carry:
                carried.absorb(members, carry_log_ratio, clip=self.carry_clip)
            records.append(
                CarryRecord(
                    index=t,
                    turns=pool,
                    live=len(batch.pools[t]),
                    members=members,
                    before=before,
                    after=carried.weights(members),
                    log_ratio=log_ratio,
                    carry_log_ratio=carry_log_ratio,
                    clipped=clip_binds(log_ratio, before, clip=self.clip),
                    new=new,
                    steps=steps,
                )
            )

        drift = drift_after_sweep(engine, records, old, carry_ratio) if self.measure_drift else {}
        return Update(
            metrics=sweep_metrics(batch, advantages, records, old, reference, drift=drift),
            trajectories=with_credit(batch, advantages, records),
        )
