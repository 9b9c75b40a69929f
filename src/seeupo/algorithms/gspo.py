"""GSPO (Zheng et al. 2025): the clip acts on length-normalized ratios of whole sequences.

    J = 1/G sum_i  min( s_i A_i, clip(s_i, 1 - low, 1 + high) A_i )

    s_i = ( pi_theta(o_i) / pi_theta_k(o_i) )^(1/|o_i|),      A_i = (R_i - mean R) / std R

A geometric mean over many tokens changes little, so the clip range is about a thousand times narrower than PPO's. A
sequence is a whole trajectory or, with `level="turn"`, each of its turns; the terms of the turns are then summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from seeupo.algorithms.common.base import BaseAlgorithm, Minibatches
from seeupo.algorithms.common.batch import Batch
from seeupo.algorithms.common.objective import RatioObjective, SequenceObjective, TrajectoryObjective
from seeupo.config.option_types import Clip
from seeupo.core.advantages import Normalize
from seeupo.protocols import TrainEngine
from seeupo.types import Update

Level = Literal["trajectory", "turn"]


@dataclass(frozen=True, kw_only=True)
class GSPO(BaseAlgorithm):
    """GRPO with one clipped, length-normalized ratio per trajectory or turn.

    The defaults are those of its paper: four mini-batches, clip range (3e-4, 4e-4).

    Attributes:
        level: Unit that has one ratio: a whole "trajectory", or each "turn".
        normalize: Divide advantages by the standard deviation of the "group" or the "batch"; "none" does not divide.
    """

    clip: Clip | None = (3e-4, 4e-4)
    minibatches: Minibatches = 4
    level: Level = "trajectory"
    normalize: Normalize = "group"

    def improve(self, engine: TrainEngine, batch: Batch, generator: torch.Generator | None) -> Update:
        advantages = batch.advantages(self.normalize, "mean")
        turns = self.turns_with_gradient(batch, advantages)
        inputs = self.objective_inputs(engine, batch, turns)
        objective: RatioObjective
        if self.level == "turn":
            objective = SequenceObjective(advantages=batch.per_turn(turns, advantages), **inputs)
        else:
            objective = TrajectoryObjective(advantages=batch.by_id(advantages), turns=batch.turns_of, **inputs)
        return self.optimize(engine, batch, advantages, turns, objective=objective, generator=generator)
