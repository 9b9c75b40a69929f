"""The critic's loss and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import padded
from seeupo.algorithms.common.records import mean_and_sd, mean_of_steps
from seeupo.core.ratios import length_mask
from seeupo.types import StepMetrics, Turn, TurnKey


@dataclass(frozen=True, kw_only=True)
class ValueLoss:
    """Squared errors of the values, clipped around the old values, summed over tokens and scaled.

    `returns` and `old` are those of the first tokens of each turn: all of them, or only one for values of turns.
    """

    returns: Mapping[TurnKey, Tensor]
    old: Mapping[TurnKey, Tensor]
    multiplicities: Mapping[str, float]
    scale: float
    clip: float | None

    def __call__(self, values_NL: Tensor, turns: Sequence[Turn]) -> Tensor:
        lengths_N = torch.tensor([len(self.returns[turn.key]) for turn in turns], dtype=torch.long)
        mask_NL = length_mask(lengths_N).to(values_NL.device)
        values_NL = values_NL[:, : mask_NL.shape[1]]
        returns_NL, old_NL = (padded(turns, rows).to(values_NL) for rows in (self.returns, self.old))
        error_NL = (values_NL - returns_NL) ** 2
        if self.clip is not None:
            near_NL = old_NL + (values_NL - old_NL).clamp(-self.clip, self.clip)
            error_NL = torch.maximum(error_NL, (near_NL - returns_NL) ** 2)
        counts_N = values_NL.new_tensor([self.multiplicities[turn.trajectory] for turn in turns])
        return counts_N * self.scale * 0.5 * torch.where(mask_NL, error_NL, 0.0).sum(1)


def critic_metrics(
    steps: Sequence[StepMetrics], returns: Sequence[Tensor], values: Sequence[Tensor], counts: Tensor
) -> dict[str, float]:
    """Return loss and gradient norm, and the fraction of the returns' variance that the old values explain."""
    weights = torch.cat([count.expand(len(row)) for count, row in zip(counts, returns, strict=True)])
    spread, unexplained = (
        mean_and_sd(torch.cat(list(rows)), weights)[1] ** 2
        for rows in (returns, [target - value for target, value in zip(returns, values, strict=True)])
    )
    means = mean_of_steps(steps)
    return {
        "critic_steps": float(len(steps)),
        "critic_loss": means.get("critic_loss", 0.0),
        "critic_grad_norm": means.get("grad_norm", 0.0),
        "explained_variance": 1 - unexplained / spread if spread > 0 else 0.0,
    }
