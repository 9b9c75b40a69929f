"""MT-GRPO (Zeng et al. 2025): GRPO with an advantage per turn, from step rewards and the outcome.

For a group of trajectories of the same task, with outcomes O_i at the end and step rewards r_it of turns t,

    A_it = (r_it - mean r_t) / std r_t  +  lambda A_i      for every turn before the last of trajectory i
    A_it = A_i                                             for its last turn

    A_i = (O_i - mean O) / std O

Mean and standard deviation of r_t are over the trajectories of the group that have a turn t; with several roles, turns
are counted within their role, because parallel calls start in another order in each attempt. All tokens of a turn have
its advantage; ratio, clip, KL and the mean over tokens are those of GRPO. Without step rewards and with lambda = 1 this
is GRPO.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch

from seeupo.algorithms.common.base import BaseAlgorithm, Minibatches
from seeupo.algorithms.common.batch import Batch
from seeupo.algorithms.common.objective import TokenObjective
from seeupo.algorithms.common.turn_credit import compare_turns, outcome_of, over_tokens, step_rewards
from seeupo.config.option_types import NonNegative
from seeupo.protocols import TrainEngine
from seeupo.types import TurnKey, Update


@dataclass(frozen=True, kw_only=True)
class MTGRPO(BaseAlgorithm):
    """GRPO with an advantage per turn, from step rewards and the outcome.

    It uses step rewards, so set collect.reward = "score_and_steps".

    Attributes:
        outcome_weight: lambda, the weight of the outcome's advantage in every turn before the last.
    """

    minibatches: Minibatches = 4
    outcome_weight: NonNegative = 1.0

    def improve(self, engine: TrainEngine, batch: Batch, generator: torch.Generator | None) -> Update:
        outcomes = [outcome_of(trajectory) for trajectory in batch.trajectories]
        advantages = batch.advantages("group", "mean", rewards=outcomes)
        rewards: dict[TurnKey, float] = {}
        positions: dict[TurnKey, Hashable] = {}
        for trajectory in batch.trajectories:
            for turn, reward in zip(trajectory.turns, step_rewards(trajectory), strict=True):
                rewards[turn.key] = reward
                positions[turn.key] = trajectory.group, *batch.role_indices[turn.key]
        of_step, metrics = compare_turns(batch, rewards, positions, "group")
        combined = batch.per_turn(batch.turns, advantages)
        last = {trajectory.turns[-1].key for trajectory in batch.trajectories if trajectory.turns}
        for key in combined.keys() - last:
            combined[key] = of_step[key] + self.outcome_weight * combined[key]
        turns = self.turns_with_gradient(batch, combined)
        objective = TokenObjective(
            advantages=over_tokens(turns, combined),
            scales={name: 1 / max(1, length) for name, length in batch.action_tokens.items()},
            **self.objective_inputs(engine, batch, turns),
        )
        return self.optimize(
            engine, batch, advantages, turns, objective=objective, generator=generator, extra_metrics=metrics
        )
