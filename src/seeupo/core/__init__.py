"""Pure tensor mathematics: no files, no models, no hidden randomness."""

from seeupo.core.advantages import gae, group_advantages
from seeupo.core.carry import CarriedAdvantage
from seeupo.core.order import turn_order
from seeupo.core.ratios import clip_binds, clipped_objective, k3, length_mask, masked_mean, sequence_log_ratio

__all__ = [
    "CarriedAdvantage",
    "clip_binds",
    "clipped_objective",
    "gae",
    "group_advantages",
    "k3",
    "length_mask",
    "masked_mean",
    "sequence_log_ratio",
    "turn_order",
]
