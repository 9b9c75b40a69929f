"""RLOO (Kool et al. 2019; Ahmadian et al. 2024): REINFORCE on whole trajectories with a leave-one-out baseline.

    gradient = 1/G sum_i  ( R_i - mean of R_j over j != i )  grad log pi_theta(o_i)

This is the gradient at theta_k of the objective J = 1/G sum_i r_i A_i with r_i = pi_theta(o_i) / pi_theta_k(o_i), the
product of all token ratios. The paper takes one step per iteration. In further steps the ratio corrects for the change
of the policy, but not for the policy's dependence on the trajectories it was already trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seeupo.algorithms.common.base import BaseAlgorithm
from seeupo.algorithms.common.batch import Batch
from seeupo.algorithms.common.objective import TrajectoryObjective
from seeupo.config.option_types import Clip
from seeupo.protocols import TrainEngine
from seeupo.types import Update


@dataclass(frozen=True, kw_only=True)
class RLOO(BaseAlgorithm):
    """REINFORCE on whole trajectories with a leave-one-out baseline; no clip by default."""

    clip: Clip | None = None

    def improve(self, engine: TrainEngine, batch: Batch, generator: torch.Generator | None) -> Update:
        advantages = batch.advantages("none", "leave_one_out")
        turns = self.turns_with_gradient(batch, advantages)
        objective = TrajectoryObjective(
            advantages=batch.by_id(advantages),
            turns=batch.turns_of,
            ratio="product",
            **self.objective_inputs(engine, batch, turns),
        )
        return self.optimize(engine, batch, advantages, turns, objective=objective, generator=generator)
