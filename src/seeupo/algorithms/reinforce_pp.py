"""REINFORCE++ with baseline (Hu et al. 2025): group baseline, normalised over the whole batch, clipped token by token.

    J = mean over trajectories  1/|o_i| sum_t  [ min( r_it A_it, clip(r_it, 1 - low, 1 + high) A_it )  -  beta KL_it ]

    A_it = (B_it - mean B) / std B,     B_it = R_i - mean R of the group - beta_r sum over u >= t of log pi_k / pi_ref

Mean and deviation are over all action tokens of the batch, not of a group. With `kl_reward_coef` (beta_r) the KL is
part of the reward: each token answers for the divergence from itself on, as in REINFORCE++ without a baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from seeupo.algorithms.ascent import Ascent
from seeupo.algorithms.batch import Batch
from seeupo.algorithms.objective import TokenObjective
from seeupo.algorithms.token_rewards import (
    cut_into_turns,
    kl_to_reference,
    means_of,
    over_tokens,
    sizes_of,
    standardized,
)
from seeupo.core.checks import check_at_least
from seeupo.types import Need, TrainEngine, Trajectory, Update


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Ascent):
    """The options of REINFORCE++ with baseline.

    Attributes:
        kl_reward_coef: weight of the KL to the reference policy in the reward, token by token.
    """

    kl_coef: float = 0.01
    kl_reward_coef: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("kl_reward_coef", self.kl_reward_coef, 0)

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | frozenset[Need]({"reference"} if self.kl_reward_coef else ())

    def update(
        self, engine: TrainEngine, trajectories: Sequence[Trajectory], *, generator: torch.Generator | None = None
    ) -> Update:
        """One iteration; `generator` draws the mini-batches."""
        batch = Batch(trajectories)
        baselined = batch.advantages("none", "mean")
        fixed = self.fix(engine, batch, batch.turns, reference=self.kl_reward_coef > 0)
        rows = [baselined[number].expand(tokens) for number, tokens in enumerate(batch.action_tokens.values())]
        if self.kl_reward_coef:
            penalties = over_tokens(batch, kl_to_reference(batch.turns, fixed["old"], fixed["reference"]))
            to_go = [row.flip(0).cumsum(0).flip(0) for row in penalties]
            rows = [row - self.kl_reward_coef * later for row, later in zip(rows, to_go, strict=True)]
        rows = standardized(rows, batch.counts)
        objective = TokenObjective(
            advantages=cut_into_turns(batch, rows),
            scales={name: 1 / max(1, length) for name, length in batch.action_tokens.items()},
            **fixed,
        )
        turns = self.with_gradient(batch, sizes_of(rows))
        return self.ascend(engine, batch, means_of(rows), turns, objective=objective, generator=generator)
