"""SeeUPO: Algorithm 1 of the paper (SeeUPPO-GRAE), on the TrainEngine protocol.

A trajectory of T turns is the joint action of T virtual agents, one per turn, that share its reward. The turns are
updated one after another, in reverse order of execution. The update of turn t maximizes

    E over pool t of  min( r^t M^{t+1}, clip(r^t, 1 - low, 1 + high) M^{t+1} ),   r^t = pi_theta(a^t) / pi_theta_k(a^t)

where M is the carried advantage; M^{T+1} is the group-relative advantage of the whole trajectory. After each update

    M^t = r^t M^{t+1}

so that an earlier turn is credited with the later turns as they are after their updates. Both ratios are relative to
theta_k, the policy that sampled. Its log-probs are computed once, before the first update, by the engine that trains,
because those recorded by a sampler may come from other kernels.

Additions to Algorithm 1: the batch normalization of A, which the paper describes in its text (the mean of A is 0 and is
not subtracted); M after the last turn, for the credit records; agents of several turns; a trust region around theta_k;
other orders and the options below. Turns and agents are counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from seeupo.algorithms.common.batch import Batch, by_key, by_trajectory
from seeupo.algorithms.common.behavior import behavior_logprobs, importance_metrics, importance_weights
from seeupo.algorithms.common.diagnostics import CarryRecord, drift_after_sweep, sweep_metrics
from seeupo.algorithms.common.objective import Ratio, TrajectoryObjective, action_log_ratio
from seeupo.algorithms.common.records import with_credit
from seeupo.algorithms.common.trust_region import PoolUpdate, TrustRegionSettings
from seeupo.core import CarriedAdvantage, turn_order
from seeupo.core.advantages import Baseline, Normalize
from seeupo.core.checks import Clip, OptionError, check_at_least, check_choice, check_clip, check_count
from seeupo.core.order import Order
from seeupo.protocols import Need, TrainEngine
from seeupo.types import ON_POLICY, Behavior, Trajectory, Turn, Update

RatioBase = Literal["theta_k", "turn"]


@dataclass(frozen=True, kw_only=True)
class SeeUPO:
    """Options of SeeUPO. The defaults are the paper's, except `kl_coef`: the paper trains with 0.002.

    The paper states `order`, `normalize`, `baseline`, `ratio`, `clip`, and M without a clip (`carry`, `carry_clip`).
    `epochs` and `steps_per_turn` are those of its public code, which differs from the paper in `ratio_base`,
    `advantage_clip`, `sample_deviation`, `carry_clip` and `carry_total_clip`. `turns_per_agent`, `carry_ratio`,
    `carry_shuffle`, `entropy_coef`, `trust_region`, `min_live` and `drift_every` are additions that change nothing by
    default.

    Attributes:
        order: Order in which the turns are updated: "reverse" (backward induction), "natural" or "random".
        turns_per_agent: Number k of consecutive turns of a virtual agent, which are updated together with one ratio;
            1 as in the paper. With k = T it is GSPO on whole trajectories.
        normalize: Divide advantages by the standard deviation of the "batch" or the "group"; "none" does not divide.
        sample_deviation: Divide by the standard deviation of a sample (n - 1) instead of the population (n).
        advantage_clip: Largest absolute advantage; none for no clip, as in the paper.
        baseline: "mean" of the group's rewards, or "leave_one_out", which avoids the factor (G-1)/G in the gradient.
        ratio: Ratio r^t in the objective: "length_normalized" as in GSPO, or "product", for which the proofs hold.
        ratio_base: Policy that ratios are relative to: "theta_k", which sampled, or "turn", the policy right before the
            turn's update, as in the paper's public code.
        carry_ratio: Ratio that the carried advantage M is multiplied by; none for the same as `ratio`.
        clip: Clip range (low, high): ratios are clipped to [1 - low, 1 + high]; none for no clip.
        kl_coef: Weight of the KL penalty to the reference policy in the loss (k3 estimator); 0 for none.
        entropy_coef: Weight of the mean token entropy; 0 for none.
        trust_region: Limits within which a turn's optimizer steps are shrunk; none takes them in full.
        steps_per_turn: Number of optimizer steps per turn and epoch, each on a random part of the trajectories.
        epochs: Number of passes over each turn pool.
        carry: Update M after each turn; False keeps M = A (ablation: turn-by-turn updates without M).
        carry_shuffle: Permute M / A at random among the trajectories of a pool whose A has the same sign (control: the
            distribution of M without what it says about each trajectory).
        carry_clip: Clip range (low, high) of each factor of M; none for no clip, as in the paper.
        carry_total_clip: Clip range (low, high) of the product of all factors, M / A; none for no clip.
        min_live: Smallest pool that is updated; the turn of a smaller pool is skipped and its ratio counts as 1.
        drift_every: Iterations between measurements of how far later updates moved each turn after its own, each of
            which costs one forward pass; 0 never measures.
    """

    order: Order = "reverse"
    turns_per_agent: int = 1
    normalize: Normalize = "batch"
    sample_deviation: bool = False
    advantage_clip: float | None = None
    baseline: Baseline = "mean"
    ratio: Ratio = "length_normalized"
    ratio_base: RatioBase = "theta_k"
    carry_ratio: Ratio | None = None
    clip: Clip | None = (0.2, 0.2)
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    trust_region: TrustRegionSettings | None = None
    steps_per_turn: int = 1
    epochs: int = 1
    carry: bool = True
    carry_shuffle: bool = False
    carry_clip: Clip | None = None
    carry_total_clip: Clip | None = None
    min_live: int = 1
    drift_every: int = 10

    def __post_init__(self) -> None:
        for name, choices in (("order", Order), ("normalize", Normalize), ("baseline", Baseline), ("ratio", Ratio)):
            check_choice(name, getattr(self, name), get_args(choices))
        check_choice("ratio_base", self.ratio_base, get_args(RatioBase))
        if self.trust_region is not None and self.ratio_base == "turn":
            raise OptionError("ratio_base", self.ratio_base, '"theta_k" with a trust region, which limits the KL to it')
        if self.advantage_clip is not None:
            check_at_least("advantage_clip", self.advantage_clip, 0)
        if self.carry_ratio is not None:
            check_choice("carry_ratio", self.carry_ratio, get_args(Ratio))
        for name in ("clip", "carry_clip", "carry_total_clip"):
            check_clip(name, getattr(self, name))
        for name in ("kl_coef", "entropy_coef"):
            check_at_least(name, getattr(self, name), 0)
        for name in ("turns_per_agent", "steps_per_turn", "epochs", "min_live"):
            check_count(name, getattr(self, name), 1)
        check_count("drift_every", self.drift_every, 0)
        for name in ("carry", "carry_shuffle", "sample_deviation"):
            check_choice(name, getattr(self, name), (True, False))
        if self.carry_shuffle and not self.carry:
            raise OptionError("carry_shuffle", self.carry_shuffle, "False without `carry`, because all M / A are 1")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference"} if self.kl_coef else ())

    def update(
        self,
        engine: TrainEngine,
        trajectories: Sequence[Trajectory],
        *,
        generator: torch.Generator | None = None,
        behavior: Behavior = ON_POLICY,
    ) -> Update:
        """Run iteration k: move the engine from theta_k, which sampled the trajectories, to theta_{k+1}.

        `generator` draws the random order, the mini-batches and the permutations of `carry_shuffle`.
        """
        # Data collection: organize the turns into T pools, one per virtual agent.
        batch = Batch(trajectories, behavior)
        pools = batch.agent_pools(self.turns_per_agent)

        # Joint advantage estimation: A = r - mean r of the same s_0, and M^{T+1} = A.
        advantages = batch.advantages(self.normalize, self.baseline, sample_deviation=self.sample_deviation)
        if self.advantage_clip is not None:
            advantages = advantages.clamp(-self.advantage_clip, self.advantage_clip)
        carried = CarriedAdvantage(advantages, total_clip=self.carry_total_clip)

        # log pi_{theta_k} of every turn, computed once, before any update. The trust region's KL includes M = 0.
        all_turns = self.trust_region is not None
        used = [pool if all_turns else self._turns_with_gradient(batch, pool, carried) for pool in pools]
        turns = [turn for pool in used for turn in pool]
        old = dict(behavior_logprobs(engine, turns, behavior)) if self.ratio_base == "theta_k" else {}
        importance = importance_weights(turns, old, behavior) if old else {}
        reference = by_key(turns, engine.logprobs(turns, policy="reference")) if turns and self.kl_coef else {}

        # Sequential policy update: t = T, T-1, ..., 1 in reverse order.
        carry_ratio = self.carry_ratio or self.ratio
        records: list[CarryRecord] = []
        for t in turn_order(len(pools), self.order, generator=generator):
            pool = self._turns_with_gradient(batch, pools[t], carried)
            if not any(turn.action_ids for turn in pool) or len(pools[t]) < self.min_live:
                continue

            if self.ratio_base == "turn":  # not the paper: r and M are then relative to theta^{t+1}_{k+1}
                old = old | by_key(pool, engine.logprobs(pool))

            # Maximize the clipped objective of pool t, from theta^{t+1}_{k+1} to theta^t_{k+1}. The normalizer is the
            # number of trajectories: one without turn t is the paper's no-op, which adds 0 and is counted.
            actions = by_trajectory(pool)
            members = batch.members([turns[0] for turns in actions.values()])
            weights = carried.shuffled_weights(members, generator) if self.carry_shuffle else carried.weights(members)
            objective = TrajectoryObjective(
                old=old,
                importance=importance,
                advantages=dict(zip(actions, weights.tolist(), strict=True)),
                turns=actions,
                multiplicities=batch.multiplicities,
                ratio=self.ratio,
                clip=self.clip,
                reference=reference,
                kl_coef=self.kl_coef,
                entropy_coef=self.entropy_coef,
            )
            epochs = [batch.minibatches(pool, self.steps_per_turn, generator) for _ in range(self.epochs)]
            update = PoolUpdate(
                engine=engine,
                objective=objective,
                agent=t,
                parts=[part for epoch in epochs for part in epoch],
                turns=pools[t] if all_turns else pool,
                total=float(batch.counts.sum()),
                moved=behavior.recorded or len(records) > 0,
            )
            taken = update.run(self.trust_region)

            # M^t = r^t M^{t+1}, with the ratio after this update.
            carry_log_ratio = action_log_ratio(actions.values(), taken.new, old, carry_ratio)
            if self.carry:
                carried.absorb(members, carry_log_ratio, clip=self.carry_clip)

            records.append(
                CarryRecord(
                    index=t,
                    turns=pool,
                    live=len(pools[t]),
                    members=members,
                    effect=objective.effect([turns[0] for turns in actions.values()], taken.new),
                    new=taken.new,
                    steps=taken.steps,
                    region=taken.metrics,
                    after=carried.weights(members),
                    carry_log_ratio=carry_log_ratio,
                )
            )

        measure_drift = self.drift_every > 0 and engine.iteration % self.drift_every == 0
        # The expected gain needs advantages on one scale, and ratios relative to theta_k.
        plain = self.ratio_base == "theta_k" and self.advantage_clip is None and not self.sample_deviation
        scale = batch.advantage_scale(self.normalize, self.baseline) if plain else None
        drift = drift_after_sweep(engine, records, old, carry_ratio) if measure_drift else {}
        extra = importance_metrics(importance)
        return Update(
            metrics=sweep_metrics(batch, advantages, records, old, reference, drift=drift, scale=scale, extra=extra),
            trajectories=with_credit(batch, advantages, records),
        )

    def _turns_with_gradient(self, batch: Batch, pool: Sequence[Turn], carried: CarriedAdvantage) -> list[Turn]:
        """Return the turns of a pool that have a gradient; those with M = 0 have one only with a KL or entropy term."""
        if self.kl_coef or self.entropy_coef:
            return list(pool)
        weights = carried.weights(batch.members(pool)).tolist()
        return [turn for turn, weight in zip(pool, weights, strict=True) if weight != 0]
