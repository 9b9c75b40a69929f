"""The carried advantage M, which SeeUPO multiplies by a ratio from turn to turn."""

from __future__ import annotations

import torch
from torch import Tensor

from seeupo.core.tensor_checks import check_finite, check_shape


class CarriedAdvantage:
    """The carried advantage M of each trajectory: its advantage A times the ratios of the turns updated so far.

    Trajectories are indices 0 ... N-1 into `advantages` [N]. Every call passes the indices of its rows, which may be in
    any order; a trajectory that is not passed keeps its M.
    """

    def __init__(self, advantages: Tensor) -> None:
        check_finite("advantages", advantages)
        self.advantages = advantages
        self._values = advantages.clone()

    def weights(self, trajectories: Tensor) -> Tensor:
        """Return the current M [n] of the trajectories [n]."""
        return self._values[trajectories]

    def absorb(self, trajectories: Tensor, log_ratio: Tensor) -> None:
        """Multiply M of the trajectories [n] by exp(log_ratio) [n], the ratios after a turn's update."""
        check_shape("log_ratio", log_ratio, trajectories.shape, like="trajectories")
        if torch.isnan(log_ratio).any():
            raise ValueError("log_ratio contains nan: expected numbers; the log-probs are not finite")
        if len(trajectories.unique()) < len(trajectories):
            raise ValueError("trajectories contains an index twice: a turn's ratio may be absorbed only once")
        before = self._values[trajectories]
        # 0 stays 0 for any ratio: 0 * inf would be nan.
        after = torch.where(before == 0, 0.0, before * log_ratio.to(before).exp())
        if not torch.isfinite(after).all():
            raise ValueError(
                f"the carried advantage M overflowed: a turn's log-ratio reached {log_ratio.max().item():.3g}; "
                "use a smaller learning rate or length-normalized ratios"
            )
        self._values[trajectories] = after
