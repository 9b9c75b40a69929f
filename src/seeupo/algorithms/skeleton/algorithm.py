"""A custom algorithm: REINFORCE (Williams 1992) with the mean reward of each group as its baseline.

gradient = 1/N sum_i (R_i - mean R) grad log pi(o_i)

Replace the advantages and the objective with your own, then test it and train with it:

    pytest test_NAME.py
    seeupo train --algorithm.name seeupo.algorithms.skeleton.algorithm:Skeleton
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seeupo.algorithms import BaseAlgorithm, Batch, TokenObjective, TrainEngine, Update


@dataclass(frozen=True, kw_only=True)
class Skeleton(BaseAlgorithm):
    """REINFORCE with the mean reward of a group as its baseline, and no clip by default.

    Attributes:
        scale: Factor of the advantages.
    """

    # Fields are keys of a recipe, checked by their types; those of BaseAlgorithm are clip, epochs, minibatches, ...
    clip: tuple[float, float] | None = None
    scale: float = 1.0

    def improve(self, engine: TrainEngine, batch: Batch, generator: torch.Generator | None) -> Update:
        """Run one iteration: estimate advantages [N], and take optimizer steps up the gradient of an objective."""
        advantages = self.scale * batch.advantages("none", "mean")
        turns = self.turns_with_gradient(batch, advantages)
        objective = TokenObjective(
            advantages=batch.per_token(turns, advantages),
            scales=dict.fromkeys(batch.multiplicities, 1.0),  # 1: an action's gradient is the sum over its tokens
            **self.objective_inputs(engine, batch, turns),
        )
        return self.optimize(engine, batch, advantages, turns, objective=objective, generator=generator)
