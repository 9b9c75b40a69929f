"""Corrections for differences between the policy that sampled and the policy that is trained.

An algorithm takes the log-probs that an engine computes before the first step for those of the policy that sampled.
They differ if the sampler uses other kernels or precision, and if trajectories were sampled ahead with older weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from seeupo.core.checks import OptionError, check_at_least, check_choice, check_count
from seeupo.types import Behavior

Level = Literal["token", "turn"]


@dataclass(frozen=True, kw_only=True)
class MismatchSettings:
    """Differences between the log-probs of sampler and trainer: how they are checked and corrected.

    Attributes:
        check_every: Iterations between comparisons of both log-probs on a few trajectories; 0 never compares.
        max_gap: Mean absolute difference per token above which training stops; "none" means no limit.
        recorded_gap: Mean absolute difference per token up to which the sampler's log-probs replace the forward pass
            before the first step, in iterations that compare both; "none" always computes them.
        tis_cap: C of truncated importance sampling, which multiplies gradients by w = min(pi_trainer / pi_sampler, C);
            "none" means w = 1.
        tis_level: "token": w from the probabilities of each token; "turn": from the product over a turn.
        turn_bounds: Bounds (low, high) of a turn's geometric mean of pi_trainer / pi_sampler; turns outside have no
            gradient. "none" uses all turns.
    """

    check_every: int = 1
    max_gap: float | None = 0.5
    recorded_gap: float | None = None
    tis_cap: float | None = None
    tis_level: Level = "token"
    turn_bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_count("check_every", self.check_every, 0)
        check_choice("tis_level", self.tis_level, get_args(Level))
        for name in ("max_gap", "recorded_gap", "tis_cap"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 0)
        if self.recorded_gap is not None and not self.check_every:
            raise OptionError("recorded_gap", self.recorded_gap, '"none" with check_every = 0, which never compares')
        if self.turn_bounds is not None and not 0 <= self.turn_bounds[0] <= 1 <= self.turn_bounds[1]:
            raise OptionError("turn_bounds", self.turn_bounds, "a pair (low, high) with low <= 1 <= high")

    def behavior(self, *, recorded: bool) -> Behavior:
        """Return how an update treats the policy that sampled its trajectories."""
        return Behavior(recorded=recorded, tis_cap=self.tis_cap, tis_level=self.tis_level, turn_bounds=self.turn_bounds)
