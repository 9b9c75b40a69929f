"""The carried advantage M, which SeeUPO multiplies by a ratio from turn to turn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seeupo.core.checks import Clip, check_clip, check_finite, check_floating, check_shape


class CarriedAdvantage:
    """The carried advantage M of each trajectory: its advantage times the ratios of the turns updated so far.

    Trajectories are indices 0 ... N-1 into `advantages` [N]. Every call passes the indices of its rows, which may be in
    any order; a trajectory that is not passed keeps its M. `total_clip` clips the product of all ratios, M / A, to
    [1 - low, 1 + high] when M is used; the paper has no such clip.
    """

    def __init__(self, advantages: Tensor, *, total_clip: Clip | None = None) -> None:
        check_floating("advantages", advantages, dims=1)
        check_finite("advantages", advantages)
        check_clip("total_clip", total_clip)
        self._advantages, self._values = advantages.clone(), advantages.clone()
        self._total_clip = total_clip

    def weights(self, trajectories: Tensor) -> Tensor:
        """Return the current M [n] of the trajectories [n]."""
        trajectories = self._checked(trajectories)
        if self._total_clip is None:
            return self._values[trajectories]
        low, high = self._total_clip
        advantages = self._advantages[trajectories]
        ends = torch.stack([(1 - low) * advantages, (1 + high) * advantages]).sort(dim=0).values
        return self._values[trajectories].clamp(*ends)

    def shuffled_weights(self, trajectories: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return M [n] of the trajectories [n] with the multipliers M / A permuted among those with A of the same sign.

        A control: the distribution of the multipliers is that of M, but they say nothing about their trajectories.
        """
        weights, advantages = self.weights(trajectories), self._advantages[trajectories]
        for same_sign in (advantages > 0, advantages < 0):
            multipliers = (weights / advantages)[same_sign]
            order = torch.randperm(len(multipliers), generator=generator)
            weights[same_sign] = multipliers[order] * advantages[same_sign]
        return weights

    def absorb(self, trajectories: Tensor, log_ratio: Tensor, *, clip: Clip | None = None) -> None:
        """Multiply M of the trajectories [n] by exp(log_ratio) [n], the ratios after a turn's update.

        `clip` clips these factors to [1 - low, 1 + high]; the paper has no such clip.
        """
        trajectories = self._checked(trajectories)
        check_shape("log_ratio", log_ratio, trajectories.shape, like="trajectories")
        check_clip("clip", clip)
        if torch.isnan(log_ratio).any():
            raise ValueError("log_ratio contains nan: expected numbers; the log-probs are not finite")
        if len(trajectories.unique()) < len(trajectories):
            raise ValueError("trajectories contains an index twice: a turn's ratio may be absorbed only once")
        if clip is not None:
            low, high = clip
            log_ratio = log_ratio.clamp(math.log1p(-low), math.log1p(high))
        before = self._values[trajectories]
        # 0 stays 0 for any ratio: 0 * inf would be nan.
        after = torch.where(before == 0, 0.0, before * log_ratio.to(before).exp())
        if not torch.isfinite(after).all():
            raise ValueError(
                f"the carried advantage M overflowed: a turn's log-ratio reached {log_ratio.max().item():.3g}; "
                "use a smaller learning rate, length-normalized ratios, or a carry_clip"
            )
        self._values[trajectories] = after

    def _checked(self, trajectories: Tensor) -> Tensor:
        if trajectories.dim() != 1 or trajectories.is_floating_point() or trajectories.dtype == torch.bool:
            raise ValueError(
                f"trajectories has shape {tuple(trajectories.shape)} and dtype {trajectories.dtype}: "
                "expected a vector of trajectory indices"
            )
        outside = trajectories[(trajectories < 0) | (trajectories >= len(self._values))]
        if len(outside):
            raise ValueError(
                f"trajectories contains {outside[0].item()}: expected indices from 0 to {len(self._values) - 1}"
            )
        return trajectories
