"""PPO (Schulman et al. 2017): clipped ratios with advantages estimated by a critic, per token or per turn.

The action tokens of all turns are the steps of one episode; observation tokens are not actions. With V the critic's
value before each token and R the rewards, which are the step reward at the last token of a turn, if step rewards are
trained on, and the outcome at the last action token,

    A_t = sum_l (gamma lambda)^l delta_{t+l},     delta_t = R_t + gamma V_{t+1} - V_t                          (GAE)

    policy:  mean over tokens of  min( r_t A_t, clip(r_t, 1 - low, 1 + high) A_t ),   A standardized over the batch
    critic:  mean over tokens of  1/2 max( (V - G_t)^2, (clip(V, V_k - c, V_k + c) - G_t)^2 ),   G_t = A_t + V_t

Every trajectory ends with its outcome at the last token and V = 0 after it, also if a turn, context or environment
limit truncated it. With `bootstrap_truncated` a truncated trajectory has gamma V(end) there, not the outcome.

With `level="turn"` (Li et al. 2025, Turn-PPO) a step is a whole turn: its state is the turn's prompt, V the value
before its first token, R its reward, gamma and lambda act per turn, and r_t is the geometric mean of its token ratios.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seeupo.algorithms.common.base import BaseAlgorithm, Minibatches
from seeupo.algorithms.common.batch import Batch
from seeupo.algorithms.common.critic import ValueLoss, critic_metrics
from seeupo.algorithms.common.objective import RatioObjective, SequenceObjective, TokenObjective
from seeupo.algorithms.common.token_rewards import (
    concatenate_turns,
    kl_penalties,
    row_means,
    row_norms,
    split_into_turns,
    standardize,
)
from seeupo.algorithms.common.turn_credit import outcome_of, step_rewards
from seeupo.config.option_types import Fraction, NonNegative, NonNegativeInt
from seeupo.core.advantages import gae
from seeupo.core.ratios import length_mask
from seeupo.errors import TrainingError
from seeupo.protocols import CriticEngine, Need, TrainEngine
from seeupo.types import StopReason, Trajectory, TurnKey, Update

Level = Literal["token", "turn"]
TRUNCATED = (StopReason.TURN_LIMIT, StopReason.CONTEXT_LIMIT, StopReason.FORCED)
"""Stop reasons of truncated trajectories: a limit ended the episode, not the environment."""


@dataclass(frozen=True, kw_only=True)
class PPO(BaseAlgorithm):
    """Clipped ratios of tokens or turns, with advantages estimated by a critic.

    The section `critic` of a recipe configures the critic.

    Attributes:
        level: Steps of the episode, each with one advantage, ratio and value: every "token", or every "turn".
        gamma: Discount factor per step; 1 does not discount the reward at the end.
        lam: Lambda of GAE, per step: 0 relies on the critic's next value, 1 on the reward only.
        value_clip: Clip range of the critic's values around the old ones, in the critic's loss; none for no clip.
        critic_warmup: Number of iterations at the start in which only the critic is trained.
        kl_reward_coef: Weight of the per-token KL penalty to the reference policy in the reward; 0 for none.
        bootstrap_truncated: Use gamma V(end) instead of the reward for trajectories that a limit truncated.
    """

    minibatches: Minibatches = 4
    level: Level = "token"
    gamma: Fraction = 1.0
    lam: Fraction = 0.95
    value_clip: NonNegative | None = 0.2
    critic_warmup: NonNegativeInt = 0
    kl_reward_coef: NonNegative = 0.0
    bootstrap_truncated: bool = False

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | frozenset[Need]({"critic"})

    def improve(self, engine: TrainEngine, batch: Batch, generator: torch.Generator | None) -> Update:
        if "critic" not in engine.capabilities:
            raise TypeError(f'{type(engine).__name__} lacks the capability "critic", which PPO needs')
        engine = cast("CriticEngine", engine)
        roles = {role for role, _ in batch.role_indices.values()}
        if len(roles) > 1 and self.lam < 1:
            raise TrainingError(
                f"algorithm.lam = {self.lam:g} with turns of the roles {', '.join(sorted(roles))}: expected 1, because "
                "GAE uses the value of the next turn, and the prompt of another role need not contain this action. Set "
                "algorithm.lam = 1, or use seeupo"
            )
        inputs = self.objective_inputs(engine, batch, batch.turns)
        penalties = kl_penalties(batch.turns, inputs["old"], inputs["reference"]) if self.kl_reward_coef else None
        advantages, targets, returns, values = self.estimate(engine, batch, penalties)

        # All steps have the same weight: the mean over tokens or turns, as a sum per trajectory.
        steps = float(sum(count * len(row) for count, row in zip(batch.counts, values, strict=True)))
        scale = float(batch.counts.sum()) / steps if steps else 0.0
        loss = ValueLoss(
            returns=self._by_turn(batch, targets),
            old=self._by_turn(batch, values),
            multiplicities=batch.multiplicities,
            scale=scale,
            clip=self.value_clip,
        )
        critic_steps = [
            engine.step_critic(part, loss, normalizer=normalizer)
            for part, normalizer in self.step_batches(batch, batch.turns, generator)
        ]
        advantages = standardize(advantages, batch.counts)
        by_turn = self._by_turn(batch, advantages)
        objective: RatioObjective
        if self.level == "turn":
            objective = SequenceObjective(advantages={key: float(row) for key, row in by_turn.items()}, **inputs)
        else:
            objective = TokenObjective(advantages=by_turn, scales=dict.fromkeys(batch.multiplicities, scale), **inputs)
        warming_up = engine.iteration < self.critic_warmup
        return self.optimize(
            engine,
            batch,
            row_means(advantages),
            [] if warming_up else self.turns_with_gradient(batch, row_norms(advantages)),
            objective=objective,
            generator=generator,
            extra_metrics=critic_metrics(critic_steps, returns, values, batch.counts),
        )

    def estimate(
        self, engine: CriticEngine, batch: Batch, penalties: Mapping[TurnKey, Tensor] | None
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
        """Return advantages, critic targets, returns and values of each trajectory's tokens or turns, in float64.

        Returns are those with lambda = 1; targets mix them with the critic's values by lambda.
        """
        acted = [trajectory for trajectory in batch.trajectories if batch.action_tokens[trajectory.id]]
        values_of = dict(zip((trajectory.id for trajectory in acted), engine.values(acted), strict=True))
        values = [values_of.get(trajectory.id, torch.zeros(1)).double() for trajectory in batch.trajectories]
        rewards = [torch.zeros(len(row) - 1, dtype=torch.float64) for row in values]
        if penalties is not None:
            rewards = [-self.kl_reward_coef * row for row in concatenate_turns(batch, penalties)]
        for trajectory, reward, value in zip(batch.trajectories, rewards, values, strict=True):
            if len(reward):
                _add_step_rewards(trajectory, reward)
                bootstrap = self.bootstrap_truncated and trajectory.stop in TRUNCATED
                reward[-1] += self.gamma * value[-1] if bootstrap else outcome_of(trajectory)
        before = [value[:-1] for value in values]
        if self.level == "turn":
            rewards = [_stack(turn.sum() for turn in turns) for turns in _rows_by_turn(batch, rewards)]
            before = [_stack(turn[0] for turn in turns) for turns in _rows_by_turn(batch, before)]
        lengths = torch.tensor([len(reward) for reward in rewards])
        rewards_NL, before_NL = (pad_sequence(rows, batch_first=True) for rows in (rewards, before))
        estimates = gae(rewards_NL, before_NL, length_mask(lengths), gamma=self.gamma, lam=self.lam)
        _, returns_NL = gae(rewards_NL, before_NL, length_mask(lengths), gamma=self.gamma, lam=1.0)
        advantages, targets, returns = (
            [row[:n] for row, n in zip(rows, lengths, strict=True)] for rows in (*estimates, returns_NL)
        )
        return advantages, targets, returns, before

    def _by_turn(self, batch: Batch, rows: Sequence[Tensor]) -> dict[TurnKey, Tensor]:
        """Return rows of trajectories as rows of turns: one value per token, or a single one per turn."""
        if self.level == "token":
            return split_into_turns(batch, rows)
        return dict(zip((turn.key for turn in batch.turns), torch.cat(list(rows))[:, None], strict=True))


def _add_step_rewards(trajectory: Trajectory, reward: Tensor) -> None:
    """Add the step reward of each turn at its last token; one without tokens counts for the turn before it."""
    end = 0
    for turn, step in zip(trajectory.turns, step_rewards(trajectory), strict=True):
        end += len(turn.action_ids)
        reward[max(0, end - 1)] += step


def _rows_by_turn(batch: Batch, rows: Sequence[Tensor]) -> list[list[Tensor]]:
    """Split the row of each trajectory into its turns that have tokens."""
    by_turn = split_into_turns(batch, rows)
    return [[by_turn[turn.key] for turn in turns] for turns in batch.turns_of.values()]


def _stack(values: Iterable[Tensor]) -> Tensor:
    return torch.stack([torch.zeros((), dtype=torch.float64), *values])[1:]  # there may be none
