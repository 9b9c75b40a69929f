"""PPO (Schulman et al. 2017): token-level ratios, weighed with advantages that a critic estimates.

The action tokens of all turns are the steps of one episode; observation tokens are no actions. The reward comes with
the last of them, and with V the critic's value before each token

    A_t = sum_l (gamma lambda)^l delta_{t+l},     delta_t = R_t + gamma V_{t+1} - V_t                          (GAE)

    policy:  mean over tokens of  min( r_t A_t, clip(r_t, 1 - low, 1 + high) A_t ),   A standardized over the batch
    critic:  mean over tokens of  1/2 max( (V - G_t)^2, (clip(V, V_k - c, V_k + c) - G_t)^2 ),   G_t = A_t + V_t

Behind the end of an episode V is 0. A trajectory that a limit has cut off has not ended, and what it would have been
worth is not known: its last token gets no reward, and V behind it is the critic's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seeupo.algorithms.ascent import Ascent
from seeupo.algorithms.batch import Batch
from seeupo.algorithms.critic import ValueLoss, critic_metrics
from seeupo.algorithms.objective import TokenObjective
from seeupo.algorithms.token_rewards import (
    cut_into_turns,
    kl_to_reference,
    means_of,
    over_tokens,
    sizes_of,
    standardized,
)
from seeupo.core import gae, length_mask
from seeupo.core.checks import check_at_least, check_count, check_unit_interval
from seeupo.types import CriticEngine, Need, StopReason, TrainEngine, Trajectory, TurnKey, Update

CUT_OFF = (StopReason.TURN_LIMIT, StopReason.CONTEXT_LIMIT, StopReason.FORCED)


@dataclass(frozen=True, kw_only=True)
class PPO(Ascent):
    """The options of PPO. It needs an engine with a critic, whose optimizer is set in the section `critic`.

    Attributes:
        gamma: discount per action token. An episode has one reward at its end, so there is none.
        lam: of GAE, per action token: 0 trusts the critic's next value, 1 only what came out.
        value_clip: how far values may move from the old ones before the loss stops rewarding it; none for any.
        critic_warmup: iterations at the beginning in which only the critic is trained.
        kl_reward_coef: weight of the KL to the reference policy in the reward, token by token.
    """

    minibatches: int = 4
    gamma: float = 1.0
    lam: float = 0.95
    value_clip: float | None = 0.2
    critic_warmup: int = 0
    kl_reward_coef: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unit_interval("gamma", self.gamma)
        check_unit_interval("lam", self.lam)
        if self.value_clip is not None:
            check_at_least("value_clip", self.value_clip, 0)
        check_count("critic_warmup", self.critic_warmup, 0)
        check_at_least("kl_reward_coef", self.kl_reward_coef, 0)

    @property
    def needs(self) -> frozenset[Need]:
        critic: frozenset[Need] = frozenset({"critic"})
        reference: frozenset[Need] = frozenset({"reference"} if self.kl_reward_coef else ())
        return super().needs | critic | reference

    def update(
        self, engine: TrainEngine, trajectories: Sequence[Trajectory], *, generator: torch.Generator | None = None
    ) -> Update:
        """One iteration; `generator` draws the mini-batches."""
        if not isinstance(engine, CriticEngine):
            raise TypeError(f"PPO needs an engine with a critic; {type(engine).__name__} has none")
        batch = Batch(trajectories)
        fixed = self.fix(engine, batch, batch.turns, reference=self.kl_reward_coef > 0)
        penalties = kl_to_reference(batch.turns, fixed["old"], fixed["reference"]) if self.kl_reward_coef else None
        advantages, returns, scored, values = self.estimate(engine, batch, penalties)

        # Every token counts the same: the mean over tokens, as a sum per trajectory.
        tokens = sum(batch.multiplicities[name] * length for name, length in batch.action_tokens.items())
        scale = float(batch.counts.sum()) / tokens if tokens else 0.0
        loss = ValueLoss(
            returns=cut_into_turns(batch, returns),
            old=cut_into_turns(batch, values),
            multiplicities=batch.multiplicities,
            scale=scale,
            clip=self.value_clip,
        )
        critic_steps = [
            engine.step_critic(part, loss, normalizer=normalizer)
            for _, part, normalizer in self.parts(batch, batch.turns, generator)
        ]
        advantages = standardized(advantages, batch.counts)
        objective = TokenObjective(
            advantages=cut_into_turns(batch, advantages),
            scales=dict.fromkeys(batch.multiplicities, scale),
            **fixed,
        )
        return self.ascend(
            engine,
            batch,
            means_of(advantages),
            self.with_gradient(batch, sizes_of(advantages)) if engine.iteration >= self.critic_warmup else [],
            objective=objective,
            generator=generator,
            extra=critic_metrics(critic_steps, scored, values, batch.counts),
        )

    def estimate(
        self, engine: CriticEngine, batch: Batch, penalties: Mapping[TurnKey, Tensor] | None
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
        """Of each trajectory's action tokens, in float64: advantages, the critic's targets, returns, and values.

        The returns are what came out, with lambda = 1; targets are mixed with what the critic expected.
        """
        acted = [trajectory for trajectory in batch.trajectories if batch.action_tokens[trajectory.id]]
        found = dict(zip((trajectory.id for trajectory in acted), engine.values(acted), strict=True))
        values = [found.get(trajectory.id, torch.zeros(1)).double() for trajectory in batch.trajectories]
        rewards = [torch.zeros(len(row) - 1, dtype=torch.float64) for row in values]
        if penalties is not None:
            rewards = [-self.kl_reward_coef * row for row in over_tokens(batch, penalties)]
        for trajectory, reward, value in zip(batch.trajectories, rewards, values, strict=True):
            if len(reward):
                reward[-1] += self.gamma * value[-1] if trajectory.stop in CUT_OFF else trajectory.reward
        lengths = torch.tensor([len(reward) for reward in rewards])
        before = [value[:-1] for value in values]
        rewards_NL, before_NL = (pad_sequence(rows, batch_first=True) for rows in (rewards, before))
        estimates = gae(rewards_NL, before_NL, length_mask(lengths), gamma=self.gamma, lam=self.lam)
        _, came_out = gae(rewards_NL, before_NL, length_mask(lengths), gamma=self.gamma, lam=1.0)
        advantages, targets, returns = (
            [row[:n] for row, n in zip(rows, lengths, strict=True)] for rows in (*estimates, came_out)
        )
        return advantages, targets, returns, before
