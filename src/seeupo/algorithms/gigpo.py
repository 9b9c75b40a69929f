"""GiGPO (Feng et al. 2025): GRPO whose advantage is refined among turns that start from the same state.

For a group of trajectories of the same task, with rewards R_i and turns t in states s_it,

    A_it = (R_i - mean R) / std R  +  w (R_it - mean over S) / (std over S),     S = { R_ju : s_ju = s_it }

    R_it = r_it + gamma R_i,t+1,   the return from turn t on, with the outcome in the last turn

S are the returns of all turns of the group that start from the same state, the trajectory's own included. A turn whose
state occurs nowhere else has no second term; turns of different roles never start from the same state. All tokens of a
turn have the advantage A_it; ratio, clip, KL and the mean over tokens are those of GRPO.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch

from seeupo.algorithms.common.base import BaseAlgorithm, Minibatches
from seeupo.algorithms.common.batch import Batch
from seeupo.algorithms.common.objective import TokenObjective
from seeupo.algorithms.common.turn_credit import compare_turns, discounted_returns, over_tokens
from seeupo.config.option_types import Fraction, NonNegative
from seeupo.core.advantages import Normalize
from seeupo.protocols import TrainEngine
from seeupo.types import TurnKey, Update


@dataclass(frozen=True, kw_only=True)
class GiGPO(BaseAlgorithm):
    """GRPO that also compares turns that start from the same state.

    The defaults are those of its paper: weight 1, discount 0.95, KL 0.01, several mini-batches.

    Attributes:
        state_weight: Weight w of the advantage among turns that start from the same state; 0 is GRPO.
        gamma: Discount factor per turn of the returns that these turns are compared by.
        deviation_term: Divide both advantages by the standard deviation of their group; False only subtracts the mean.
    """

    kl_coef: NonNegative = 0.01
    minibatches: Minibatches = 4
    state_weight: NonNegative = 1.0
    gamma: Fraction = 0.95
    deviation_term: bool = True

    def improve(self, engine: TrainEngine, batch: Batch, generator: torch.Generator | None) -> Update:
        normalize: Normalize = "group" if self.deviation_term else "none"
        advantages = batch.advantages(normalize, "mean")
        returns: dict[TurnKey, float] = {}
        states: dict[TurnKey, Hashable] = {}
        for trajectory in batch.trajectories:
            for turn, value in zip(trajectory.turns, discounted_returns(trajectory, self.gamma), strict=True):
                returns[turn.key] = value
                # A turn whose state is unknown is compared with no other.
                state = trajectory.group, turn.agent_role, turn.state_key
                states[turn.key] = state if turn.state_key else turn.key
        in_state, metrics = compare_turns(batch, returns, states, normalize)
        combined = {
            key: value + self.state_weight * in_state[key]
            for key, value in batch.per_turn(batch.turns, advantages).items()
        }
        turns = self.turns_with_gradient(batch, combined)
        objective = TokenObjective(
            advantages=over_tokens(turns, combined),
            scales={name: 1 / max(1, length) for name, length in batch.action_tokens.items()},
            **self.objective_inputs(engine, batch, turns),
        )
        return self.optimize(
            engine, batch, advantages, turns, objective=objective, generator=generator, extra_metrics=metrics
        )
