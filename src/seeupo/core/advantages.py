"""Advantage estimators: group-relative (GRAE, without a critic) and generalized (GAE, with a critic)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from seeupo.core.tensor_checks import check_finite, check_shape
from seeupo.utils.option_checks import check_choice

Normalize = Literal["none", "group", "batch"]
Baseline = Literal["mean", "leave_one_out"]

NO_SPREAD = 1e-8
"""Standard deviations below this are treated as 0: dividing by them would only amplify rounding errors."""


def group_advantages(
    rewards: Tensor,
    groups: Tensor,
    *,
    normalize: Normalize = "batch",
    baseline: Baseline = "mean",
    weights: Tensor | None = None,
) -> Tensor:
    """Return group-relative advantages [N] of rewards [N]: the reward minus its group's baseline.

    Args:
        rewards: [N], finite.
        groups: [N] integers; rows with equal values form a group (trajectories of the same task).
        normalize: "none"; "group" divides by the population standard deviation of the group's rewards; "batch" divides
            by the population standard deviation of all advantages, whose mean is 0 by construction.
        baseline: "mean" of the group, or "leave_one_out", the mean of the other members.
        weights: [N] probabilities or multiplicities of the rows, for means and standard deviations.

    A standard deviation below 1e-8 gives zeros, and a group with equal rewards gives exactly 0 under every option.
    Computed in float64, returned in the dtype of the rewards.
    """
    check_choice("normalize", normalize, get_args(Normalize))
    check_choice("baseline", baseline, get_args(Baseline))
    check_finite("rewards", rewards)
    check_shape("groups", groups, rewards.shape, like="rewards")
    if weights is not None:
        check_shape("weights", weights, rewards.shape, like="rewards")
        if baseline == "leave_one_out":
            raise ValueError("weights cannot be combined with baseline='leave_one_out'; use baseline='mean'")
    dtype, rewards = rewards.dtype, rewards.double()
    weights = torch.ones_like(rewards) if weights is None else weights.double()

    labels, group = groups.unique(return_inverse=True)

    def per_group_sum(values: Tensor) -> Tensor:
        return values.new_zeros(len(labels)).index_add(0, group, values)

    total = per_group_sum(weights)
    mean = per_group_sum(weights * rewards) / total
    advantages = rewards - mean[group]
    if baseline == "leave_one_out":
        if (total < 2).any():
            raise ValueError(
                f"group {labels[total.argmin()].item()} has one member: baseline='leave_one_out' needs at least 2"
            )
        advantages = advantages * (total / (total - 1))[group]

    if normalize == "group":
        deviation = (per_group_sum(weights * (rewards - mean[group]) ** 2) / total).sqrt()[group]
    elif normalize == "batch":
        deviation = ((weights * advantages**2).sum() / weights.sum()).sqrt().expand_as(advantages)
    else:
        deviation = torch.ones_like(advantages)
    advantages = torch.where(deviation < NO_SPREAD, 0.0, advantages / deviation.clamp(min=NO_SPREAD))

    # The mean of equal rewards may differ from them by a rounding error, which must not become an advantage.
    extremes = rewards.new_zeros(len(labels))
    highest = extremes.scatter_reduce(0, group, rewards, "amax", include_self=False)
    lowest = extremes.scatter_reduce(0, group, rewards, "amin", include_self=False)
    return torch.where((highest == lowest)[group], 0.0, advantages).to(dtype)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return generalized advantage estimates and returns, both [N, L].

    Only positions where `mask` is True are actions. Observation tokens and padding are not discounted and get no
    advantage; their `rewards` and `values` are ignored. The last action is terminal (no bootstrap).
    """
    check_shape("values", values, rewards.shape, like="rewards")
    check_shape("mask", mask, rewards.shape, like="rewards")
    rewards, values = torch.where(mask, rewards, 0.0), torch.where(mask, values, 0.0)
    check_finite("rewards", rewards)
    check_finite("values", values)
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = rewards.new_zeros(len(rewards))
    for position in reversed(range(rewards.shape[1])):
        live, value = mask[:, position], values[:, position]
        advantage = rewards[:, position] + gamma * next_value - value + gamma * lam * next_advantage
        advantages[:, position] = torch.where(live, advantage, 0.0)
        next_advantage = torch.where(live, advantage, next_advantage)
        next_value = torch.where(live, value, next_value)
    return advantages, advantages + values
