"""GSPO (Zheng et al. 2025): the clip acts on whole sequences, whose ratio is normalised by their length.

    J = 1/G sum_i  min( s_i A_i, clip(s_i, 1 - low, 1 + high) A_i )

    s_i = ( pi_theta(o_i) / pi_theta_k(o_i) )^(1/|o_i|),      A_i = (R_i - mean R) / std R

A geometric mean over many tokens moves little, so the clip is about a thousand times narrower than that of PPO. A
sequence is a whole trajectory, or (`level="turn"`) each of its turns, whose terms are then added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from seeupo.algorithms.ascent import Ascent
from seeupo.algorithms.batch import Batch
from seeupo.algorithms.objective import RatioObjective, SequenceObjective, TrajectoryObjective
from seeupo.core.advantages import Normalize
from seeupo.core.checks import Clip, check_choice
from seeupo.types import TrainEngine, Trajectory, Update

Level = Literal["trajectory", "turn"]


@dataclass(frozen=True, kw_only=True)
class GSPO(Ascent):
    """The options of GSPO. The defaults are those of its paper: four mini-batches and a clip of 3e-4 and 4e-4.

    Attributes:
        level: what a sequence is: a whole "trajectory", or each "turn" of it.
        normalize: of the advantages: "group", "batch" or "none".
    """

    clip: Clip | None = (3e-4, 4e-4)
    minibatches: int = 4
    level: Level = "trajectory"
    normalize: Normalize = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("level", self.level, get_args(Level))
        check_choice("normalize", self.normalize, get_args(Normalize))

    def update(
        self, engine: TrainEngine, trajectories: Sequence[Trajectory], *, generator: torch.Generator | None = None
    ) -> Update:
        """One iteration; `generator` draws the mini-batches."""
        batch = Batch(trajectories)
        advantages = batch.advantages(self.normalize, "mean")
        turns = self.with_gradient(batch, advantages)
        fixed = self.fix(engine, batch, turns)
        objective: RatioObjective
        if self.level == "turn":
            objective = SequenceObjective(advantages=batch.per_turn(turns, advantages), **fixed)
        else:
            objective = TrajectoryObjective(advantages=batch.by_id(advantages), turns=batch.turns_of, **fixed)
        return self.ascend(engine, batch, advantages, turns, objective=objective, generator=generator)
