"""Measures of a weight per turn against the true advantage."""

from __future__ import annotations

import torch
from torch import Tensor

from studies.credit.engine import Groups
from studies.credit.problem import F64

NEGLIGIBLE = 1e-9
"""Largest true advantage that counts as 0 and has no sign."""


def sign_agreement(weights: Tensor, truth: Tensor, count: Tensor) -> float | None:
    """Return the share of turns whose weight has the sign of the true advantage; a weight of 0 counts half.

    Turns without a true advantage do not count. None if there are no others.
    """
    counted = count * (truth.abs() > NEGLIGIBLE)
    if not counted.any():
        return None
    return float((counted * (1 + weights.sign() * truth.sign()) / 2).sum() / counted.sum())


def correlation(weights: Tensor, truth: Tensor, count: Tensor) -> float | None:
    """Return Pearson's correlation over all turns; None if weights or truth are constant."""
    share = count / count.sum()
    left, right = weights - share @ weights, truth - share @ truth
    scale = ((share @ left**2) * (share @ right**2)).sqrt()
    return float(share @ (left * right) / scale) if scale > NEGLIGIBLE else None


def bias_and_variance(weights: Tensor, truth: Tensor, groups: Groups) -> tuple[float, float] | None:
    """Return the squared bias and the variance of the weights, as multiples of the mean squared true advantage.

    The methods scale their weights differently. Weights are therefore multiplied by the factor at which their
    regression on the true advantage has slope 1; None if they do not rise with it. Bias is the mean error of each
    (turn, state, action), corrected for the error of this mean over groups; variance is the rest.
    """
    count = groups.count
    slope = float((count * weights * truth).sum() / (count * truth**2).sum())
    if not slope > NEGLIGIBLE:
        return None
    error = weights / slope - truth
    cells, cell = groups.cell.unique(return_inverse=True)
    numbers = int(groups.group.max()) + 1

    def total(values: Tensor) -> Tensor:
        """Return the sum of the values of each group and cell [C, cells]."""
        place = groups.group * len(cells) + cell
        return torch.zeros(numbers * len(cells), dtype=F64).index_add(0, place, values).view(numbers, -1)

    size, sums = total(count), total(count * error)
    mean = sums.sum(0) / size.sum(0)
    mean_error = ((sums - size * mean) ** 2).sum(0) / size.sum(0) ** 2
    share = size.sum(0) / count.sum()
    scale = float((count * truth**2).sum() / count.sum())
    bias = max(0.0, float(share @ (mean**2 - mean_error)))
    variance = float((count * (error - mean[cell]) ** 2).sum() / count.sum())
    return bias / scale, variance / scale
