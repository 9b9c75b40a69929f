"""RLOO (Kool et al. 2019; Ahmadian et al. 2024): REINFORCE on whole trajectories, with the others as the baseline.

    gradient = 1/G sum_i  ( R_i - mean of R_j over j != i )  grad log pi_theta(o_i)

It is the gradient at theta_k of J = 1/G sum_i r_i A_i with r_i = pi_theta(o_i) / pi_theta_k(o_i), the product of all
token ratios, which is what is stepped on. The paper takes one step. Further ones on the same trajectories allow for the
policy having moved, but not for what it has learned from these very trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from seeupo.algorithms.ascent import Ascent
from seeupo.algorithms.batch import Batch
from seeupo.algorithms.objective import TrajectoryObjective
from seeupo.core.checks import Clip
from seeupo.types import TrainEngine, Trajectory, Update


@dataclass(frozen=True, kw_only=True)
class RLOO(Ascent):
    """The options of RLOO. It clips nothing unless told to."""

    clip: Clip | None = None

    def update(
        self, engine: TrainEngine, trajectories: Sequence[Trajectory], *, generator: torch.Generator | None = None
    ) -> Update:
        """One iteration; `generator` draws the mini-batches."""
        batch = Batch(trajectories)
        advantages = batch.advantages("none", "leave_one_out")
        turns = self.with_gradient(batch, advantages)
        objective = TrajectoryObjective(
            advantages=batch.by_id(advantages), turns=batch.turns_of, ratio="product", **self.fix(engine, batch, turns)
        )
        return self.ascend(engine, batch, advantages, turns, objective=objective, generator=generator)
