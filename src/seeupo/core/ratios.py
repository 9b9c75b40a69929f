"""Importance ratios of whole actions, the clipped objective on them, and means over action tokens.

All functions take log-probs padded to [N, L] and one boolean mask, True at action tokens. Values at other positions,
NaN included, affect neither a result nor a gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seeupo.config.option_types import Clip
from seeupo.core.tensor_checks import check_shape


def length_mask(lengths: Tensor) -> Tensor:
    """Return the mask [N, max length] of right-padded rows with `lengths` [N] tokens."""
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean [N] over each row's action tokens; rows without tokens give exactly 0."""
    check_shape("mask", mask, values.shape, like="values")
    return torch.where(mask, values, 0.0).sum(1) / mask.sum(1).clamp(min=1)


def sequence_log_ratio(new: Tensor, old: Tensor, mask: Tensor, *, length_normalize: bool = True) -> Tensor:
    """Return log pi_new(a) / pi_old(a) [N] of whole actions, from token log-probs [N, L].

    With `length_normalize` it is the mean over the action's tokens instead of the sum: the ratio of GSPO, a geometric
    mean of token ratios. Rows without tokens give exactly 0 (ratio 1).
    """
    check_shape("old", old, new.shape, like="new")
    check_shape("mask", mask, new.shape, like="new")
    difference = torch.where(mask, new, 0.0) - torch.where(mask, old, 0.0)
    return masked_mean(difference, mask) if length_normalize else difference.sum(1)


def clipped_objective(log_ratio: Tensor, weight: Tensor, *, clip: Clip | None = (0.2, 0.2)) -> Tensor:
    """Return min(r w, clip(r, 1 - low, 1 + high) w) [N], to be maximized, for log r and weights w [N].

    Written as r w with r bounded from above if w > 0 and from below if w < 0, which is the same number and stays
    differentiable when an unclipped ratio would overflow. A weight of 0 gives exactly 0.
    """
    check_shape("weight", weight, log_ratio.shape, like="log_ratio")
    log_ratio = torch.where(weight == 0, 0.0, log_ratio)
    if clip is not None:
        low, high = clip
        from_above, from_below = log_ratio.clamp(max=math.log1p(high)), log_ratio.clamp(min=math.log1p(-low))
        log_ratio = torch.where(weight > 0, from_above, from_below)
    return log_ratio.exp() * weight


def clip_binds(log_ratio: Tensor, weight: Tensor, *, clip: Clip | None) -> Tensor:
    """Return where [N] the clip is active: the objective is constant and has no gradient."""
    check_shape("weight", weight, log_ratio.shape, like="log_ratio")
    if clip is None:
        return torch.zeros_like(log_ratio, dtype=torch.bool)
    low, high = clip
    above, below = log_ratio > math.log1p(high), log_ratio < math.log1p(-low)
    return (above & (weight > 0)) | (below & (weight < 0))


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """Return the k3 estimate of KL(new || reference), q - log q - 1 with q = reference / new, for tokens from `new`.

    It is never negative, and unbiased as a value. Its gradient through `new`, (1 - q) grad log new, is in expectation
    that of the other direction, KL(reference || new): it pulls towards covering the reference.
    """
    check_shape("reference", reference, new.shape, like="new")
    log_q = reference - new
    return log_q.expm1() - log_q
