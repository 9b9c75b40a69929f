"""M, the advantage carried from turn to turn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seeupo.core.checks import Clip, check_clip, check_finite, check_floating, check_shape


class CarriedAdvantage:
    """M of each trajectory: its advantage times the ratios of the turns that have been updated so far.

    Trajectories are numbered 0 ... N-1 as in `advantages` [N]; every call names the trajectories it speaks of, so that
    the rows of a batch can stand in any order, and a trajectory that is not named keeps its M.
    """

    def __init__(self, advantages: Tensor) -> None:
        check_floating("advantages", advantages, dims=1)
        check_finite("advantages", advantages)
        self._values = advantages.clone()

    def weights(self, trajectories: Tensor) -> Tensor:
        """M [n] of the trajectories [n], as it stands now."""
        return self._values[self._checked(trajectories)]

    def absorb(self, trajectories: Tensor, log_ratio: Tensor, *, clip: Clip | None = None) -> None:
        """Multiply M of the trajectories [n] by exp(log_ratio) [n], the ratio which a turn's update produced.

        `clip` bounds that factor to [1 - low, 1 + high]; the paper has no such bound.
        """
        trajectories = self._checked(trajectories)
        check_shape("log_ratio", log_ratio, trajectories.shape, like="trajectories")
        check_clip("clip", clip)
        if torch.isnan(log_ratio).any():
            raise ValueError("log_ratio contains nan; the log-probs it comes from are not finite")
        if len(trajectories.unique()) < len(trajectories):
            raise ValueError("trajectories names one trajectory twice; a turn's ratio may be absorbed only once")
        if clip is not None:
            low, high = clip
            log_ratio = log_ratio.clamp(math.log1p(-low), math.log1p(high))
        before = self._values[trajectories]
        # 0 stays 0, whatever its ratio: 0 * inf would be nan.
        after = torch.where(before == 0, 0.0, before * log_ratio.to(before).exp())
        if not torch.isfinite(after).all():
            raise ValueError(
                f"M has overflowed: a turn's log-ratio reached {log_ratio.max().item():.3g}; "
                "take a smaller learning rate, length-normalised ratios, or a carry_clip"
            )
        self._values[trajectories] = after

    def _checked(self, trajectories: Tensor) -> Tensor:
        if trajectories.dim() != 1 or trajectories.is_floating_point() or trajectories.dtype == torch.bool:
            raise ValueError(
                f"trajectories has shape {tuple(trajectories.shape)} and dtype {trajectories.dtype}; "
                "it must be a vector of trajectory numbers"
            )
        outside = trajectories[(trajectories < 0) | (trajectories >= len(self._values))]
        if len(outside):
            raise ValueError(f"trajectory {outside[0].item()} does not exist; there are {len(self._values)}, from 0")
        return trajectories
