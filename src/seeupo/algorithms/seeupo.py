"""SeeUPO: Algorithm 1 of the paper (SeeUPPO-GRAE).

A trajectory of T turns is the joint action of T virtual agents, one per turn, that share its reward. If a program calls
the model in several roles, a virtual agent is a role and the index of a turn among those of its role. The turns are
updated one after another, in reverse order of execution. The update of turn t maximizes

    E over pool t of  min( r^t M^{t+1}, clip(r^t, 1 - low, 1 + high) M^{t+1} ),   r^t = pi_theta(a^t) / pi_theta_k(a^t)

where M is the carried advantage; M^{T+1} is the group-relative advantage A of the whole trajectory. After each update

    M^t = r^t M^{t+1}

so that an earlier turn is credited with the later turns as they are after their updates. Both ratios are relative to
theta_k, the policy that sampled; its log-probs are computed once, before the first update, by the engine that trains.
`SeeUPO.update` is one iteration; its rollouts are collected by the loop that calls it. Turns are counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seeupo.algorithms.common.base import RatioAlgorithm
from seeupo.algorithms.common.batch import Batch, LogProbs, by_trajectory, logprobs_by_key
from seeupo.algorithms.common.carry_metrics import sweep_metrics
from seeupo.algorithms.common.objective import Ratio, TrajectoryObjective, action_log_ratio
from seeupo.algorithms.common.records import TakenSteps, TurnRecord, turn_record, with_credit
from seeupo.algorithms.common.trust_region import TrustRegionSettings, take_within
from seeupo.config.option_types import PositiveInt
from seeupo.core.advantages import Baseline, Normalize
from seeupo.core.carry import CarriedAdvantage
from seeupo.core.order import Order, turn_order
from seeupo.protocols import TrainEngine
from seeupo.types import ON_POLICY, Behavior, Trajectory, Turn, Update


@dataclass(frozen=True, kw_only=True)
class SeeUPO(RatioAlgorithm):
    """Turn by turn, last turn first; the advantage M is multiplied by the ratio of each finished update.

    The defaults are the paper's, except `kl_coef`: the paper trains with 0.002.

    Attributes:
        order: Order in which the turns are updated: "reverse" (backward induction), "natural" or "random".
        turns_per_agent: Number k of consecutive turns of a virtual agent (of a role, if there are several), which are
            updated together with one ratio; 1 as in the paper. With k = T it is GSPO on whole trajectories.
        normalize: Divide advantages by the standard deviation of the "batch" or the "group"; "none" does not divide.
        baseline: "mean" of the group's rewards, or "leave_one_out", which avoids the factor (G-1)/G in the gradient.
        ratio: Ratio r^t: "length_normalized" as in GSPO, or "product", for which the proofs hold.
        carry: Update M after each turn; False keeps M = A (ablation: turn-by-turn updates without M).
        steps_per_turn: Number of optimizer steps per turn and epoch, each on a random part of the trajectories.
        trust_region: Limits within which a turn's optimizer steps are shrunk; none takes them in full.
        min_live: Smallest pool that is updated; the turn of a smaller pool is skipped and its ratio counts as 1.
    """

    order: Order = "reverse"
    turns_per_agent: PositiveInt = 1
    normalize: Normalize = "batch"
    baseline: Baseline = "mean"
    ratio: Ratio = "length_normalized"
    carry: bool = True
    steps_per_turn: PositiveInt = 1
    trust_region: TrustRegionSettings | None = None
    min_live: PositiveInt = 1

    def update(
        self,
        engine: TrainEngine,
        trajectories: Sequence[Trajectory],
        *,
        generator: torch.Generator | None = None,
        behavior: Behavior = ON_POLICY,
    ) -> Update:
        """Run iteration k: move the engine from theta_k, which sampled the trajectories, to theta_{k+1}.

        `generator` draws the random order and the mini-batches.
        """
        # Collect the turns in T pools, one per virtual agent, in the order of execution.
        batch = Batch(trajectories, behavior)
        total = float(batch.counts.sum())
        by_agent = batch.agent_pools(self.turns_per_agent)
        agents = list(by_agent)
        pools = list(by_agent.values())

        # Estimate the joint advantage: A = r - mean r of the same s_0, and M^{T+1} = A.
        advantages = self.advantages(batch)
        carried = CarriedAdvantage(advantages)

        # Compute log pi_{theta_k} of all turns before any update; the trust region also needs those with M = 0.
        region = self.trust_region
        used = pools if region else [self.pool_with_gradient(batch, pool, carried) for pool in pools]
        inputs = self.objective_inputs(engine, batch, [turn for pool in used for turn in pool])

        # Update the policy sequentially, in reverse order for t = T, T-1, ..., 1, on the turns with a gradient.
        records: list[TurnRecord] = []
        for t in turn_order(len(pools), self.order, generator=generator):
            pool = self.pool_with_gradient(batch, pools[t], carried)
            if not any(turn.action_ids for turn in pool) or len(pools[t]) < self.min_live:
                continue
            inputs["old"] = self.ratio_base(engine, pool, inputs["old"])

            # Maximize the clipped objective of pool t. Its normalizer is the number of all trajectories: one without
            # turn t is the paper's no-op, which adds 0.
            actions = by_trajectory(pool)
            members = batch.members([turns[0] for turns in actions.values()])
            weights = self.weights(carried, members, generator).tolist()
            objective = TrajectoryObjective(
                advantages=dict(zip(actions, weights, strict=True)), turns=actions, ratio=self.ratio, **inputs
            )
            minibatches = [
                part for _ in range(self.epochs) for part in batch.minibatches(pool, self.steps_per_turn, generator)
            ]
            moved = behavior.recorded or len(records) > 0
            steps = (  # taken one by one, when they are drawn
                engine.step(part, objective.for_step(engine, part, moved or n > 0), normalizer=size, agent=agents[t])
                for n, (part, size) in enumerate(minibatches)
            )
            if region is None:
                taken = TakenSteps(steps=list(steps), new=logprobs_by_key(engine, pool))
            else:
                start = logprobs_by_key(engine, pools[t]) if moved else inputs["old"]
                taken = take_within(region, steps, engine, objective, pool=pools[t], start=start, total=total)

            # Carry the advantage on: M^t = r^t M^{t+1}, with the ratio after this update; M^1 is only recorded.
            self.absorb(carried, members, objective, taken.new)
            after = carried.weights(members)
            records.append(turn_record(batch, t, pools[t], pool, objective, taken=taken, after=after))

        scale = self.advantage_scale(batch)  # The engine now holds theta_{k+1}.
        return Update(
            metrics=sweep_metrics(batch, advantages, records, inputs, scale),
            trajectories=with_credit(batch, advantages, records),
        )

    def pool_with_gradient(self, batch: Batch, pool: Sequence[Turn], carried: CarriedAdvantage) -> list[Turn]:
        """Return the turns of a pool that have a gradient; those with M = 0 have one only with a KL or entropy term."""
        if self.kl_coef or self.entropy_coef:
            return list(pool)
        weights = carried.weights(batch.members(pool)).tolist()
        return [turn for turn, weight in zip(pool, weights, strict=True) if weight != 0]

    # Variants of Algorithm 1 override these methods; studies/variants.py has some.

    def advantages(self, batch: Batch) -> Tensor:
        """Return the advantage A [N] of each trajectory."""
        return batch.advantages(self.normalize, self.baseline)

    def advantage_scale(self, batch: Batch) -> float | None:
        """Return what `advantages` divides by, for the metric `expected_gain`; None if it is not the same for all."""
        return batch.advantage_scale(self.normalize, self.baseline)

    def ratio_base(self, engine: TrainEngine, pool: Sequence[Turn], old: LogProbs) -> LogProbs:
        """Return the log-probs that the ratios of a pool are relative to: `old`, those of theta_k."""
        return old

    def weights(self, carried: CarriedAdvantage, members: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the weights [n] in the update of trajectories [n] of the batch: their M."""
        return carried.weights(members)

    def absorb(self, carried: CarriedAdvantage, members: Tensor, objective: TrajectoryObjective, new: LogProbs) -> None:
        """Multiply M of trajectories [n] by the ratios of the actions that the objective was maximized on."""
        if self.carry:
            carried.absorb(members, action_log_ratio(objective.turns.values(), new, objective.old, self.ratio))
