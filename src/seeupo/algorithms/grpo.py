"""GRPO (Shao et al. 2024, DeepSeekMath): clipped token-level ratios with group-relative advantages.

For a group of G trajectories o_1 ... o_G of the same task, with rewards R_i,

    J = 1/G sum_i  1/|o_i| sum_t  [ min( r_it A_i, clip(r_it, 1 - low, 1 + high) A_i )  -  beta KL_it ]

    A_i = (R_i - mean R) / std R,      r_it = pi_theta(token t of o_i) / pi_theta_k(the same)

where |o_i| is the number of action tokens of all turns. Dr. GRPO (Liu et al. 2025) drops std R, which gives more weight
to very easy and very hard tasks, and 1/|o_i|, which favors long failures: `deviation_term` and `length_term`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seeupo.algorithms.common.base import BaseAlgorithm
from seeupo.algorithms.common.batch import Batch
from seeupo.algorithms.common.objective import TokenObjective
from seeupo.config.option_types import NonNegative, PositiveInt
from seeupo.protocols import TrainEngine
from seeupo.types import Update


@dataclass(frozen=True, kw_only=True)
class GRPO(BaseAlgorithm):
    """Clipped token ratios with advantages relative to the group.

    The defaults are those of its paper: one step per iteration, beta = 0.04.

    Attributes:
        deviation_term: Divide advantages by the standard deviation of their group's rewards; False as in Dr. GRPO.
        length_term: Average over a trajectory's tokens; False sums them and divides by `constant_length`.
        constant_length: Divisor for all trajectories if `length_term` is False.
    """

    kl_coef: NonNegative = 0.04
    deviation_term: bool = True
    length_term: bool = True
    constant_length: PositiveInt = 1024

    def improve(self, engine: TrainEngine, batch: Batch, generator: torch.Generator | None) -> Update:
        advantages = batch.advantages("group" if self.deviation_term else "none", "mean")
        turns = self.turns_with_gradient(batch, advantages)
        lengths = batch.action_tokens if self.length_term else dict.fromkeys(batch.action_tokens, self.constant_length)
        objective = TokenObjective(
            advantages=batch.per_token(turns, advantages),
            scales={name: 1 / max(1, length) for name, length in lengths.items()},
            **self.objective_inputs(engine, batch, turns),
        )
        return self.optimize(engine, batch, advantages, turns, objective=objective, generator=generator)
