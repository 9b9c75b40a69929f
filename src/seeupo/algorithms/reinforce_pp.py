"""REINFORCE++ with baseline (Hu et al. 2025): group baseline, batch-wide normalization, clipped token-level ratios.

    J = mean over trajectories  1/|o_i| sum_t  [ min( r_it A_it, clip(r_it, 1 - low, 1 + high) A_it )  -  beta KL_it ]

    A_it = (B_it - mean B) / std B,     B_it = R_i - mean R of the group - beta_r sum over u >= t of log pi_k / pi_ref

Mean and standard deviation are over all action tokens of the batch, not of a group. With `kl_reward_coef` (beta_r) the
KL penalty is part of the reward-to-go of each token, as in REINFORCE++ without a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seeupo.algorithms.common.base import BaseAlgorithm
from seeupo.algorithms.common.batch import Batch
from seeupo.algorithms.common.objective import TokenObjective
from seeupo.algorithms.common.token_rewards import (
    concatenate_turns,
    kl_penalties,
    row_means,
    row_norms,
    split_into_turns,
    standardize,
)
from seeupo.config.option_types import NonNegative
from seeupo.protocols import TrainEngine
from seeupo.types import Update


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(BaseAlgorithm):
    """Clipped token ratios with a group baseline and one scale of advantages for the whole batch.

    Attributes:
        kl_reward_coef: Weight of the per-token KL penalty to the reference policy in the reward; 0 for none.
    """

    kl_coef: NonNegative = 0.01
    kl_reward_coef: NonNegative = 0.0

    def improve(self, engine: TrainEngine, batch: Batch, generator: torch.Generator | None) -> Update:
        baselined = batch.advantages("none", "mean")
        inputs = self.objective_inputs(engine, batch, batch.turns)
        rows = [baselined[n].expand(tokens) for n, tokens in enumerate(batch.action_tokens.values())]
        if self.kl_reward_coef:
            penalties = concatenate_turns(batch, kl_penalties(batch.turns, inputs["old"], inputs["reference"]))
            to_go = [row.flip(0).cumsum(0).flip(0) for row in penalties]
            rows = [row - self.kl_reward_coef * later for row, later in zip(rows, to_go, strict=True)]
        rows = standardize(rows, batch.counts)
        objective = TokenObjective(
            advantages=split_into_turns(batch, rows),
            scales={name: 1 / max(1, length) for name, length in batch.action_tokens.items()},
            **inputs,
        )
        turns = self.turns_with_gradient(batch, row_norms(rows))
        return self.optimize(engine, batch, row_means(rows), turns, objective=objective, generator=generator)
