"""Update rules of the exact engine: gradient ascent, the exact maximizer, and a trust-region step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from seeupo.utils.option_checks import check_at_least
from studies.exact.policy import Policy, TablePolicy


@dataclass(frozen=True)
class Pool:
    """Objective of a set of turns as a function of the policy.

    Attributes:
        nodes, tokens, mask: Node, token and existence of each token of the actions [N, L].
        evaluate: Function from log-probs and entropies [N, L] to the objectives of the turns [N].
        normalizer: Divisor of the summed objectives.
        sampled_from: Probabilities of the policy that sampled the turns [nodes, V].
        reach: Function that returns the probability of each node under that policy [nodes].
    """

    nodes: Tensor
    tokens: Tensor
    mask: Tensor
    evaluate: Callable[[Tensor, Tensor], Tensor]
    normalizer: float
    sampled_from: Tensor
    reach: Callable[[], Tensor]

    def value(self, log_policy: Tensor) -> Tensor:
        """Return the objective of the whole pool, a scalar."""
        logprobs_NL = log_policy[self.nodes, self.tokens]
        # A token of probability 0 contributes nothing to the entropy; 0 * -inf would be nan.
        entropies_NL = -torch.where(log_policy.isinf(), 0.0, log_policy.exp() * log_policy).sum(1)[self.nodes]
        return self.evaluate(logprobs_NL, entropies_NL).sum() / self.normalizer


class UpdateRule(Protocol):
    def __call__(self, policy: Policy, pool: Pool) -> dict[str, float]:
        """Change the policy's parameters in place to increase the pool's objective; return named scalars."""


@dataclass(frozen=True)
class GradientAscent:
    """Gradient step: theta += learning_rate * gradient."""

    learning_rate: float

    def __call__(self, policy: Policy, pool: Pool) -> dict[str, float]:
        parameters = list(policy.parameters().values())
        gradients = torch.autograd.grad(pool.value(policy.log_probs()), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=self.learning_rate)
        return {"grad_norm": float(torch.cat([gradient.flatten() for gradient in gradients]).norm())}


@dataclass(frozen=True)
class Maximizer:
    """Set the policy to the exact argmax over the simplex, for a table policy and one-token actions.

    The objective must be concave and piecewise linear in each probability. It is evaluated at its kinks, checked to be
    linear in between, and probability is assigned to the steepest pieces first. Among several maximizers the one that
    fills small ratios first is taken, so that a flat objective leaves the policy unchanged.

    Attributes:
        kinks: Ratios to the sampling policy at which the slope changes: 1 - low and 1 + high of the clip; empty
            without a clip.
        radius: Largest change of any probability.
        floor: Lowest probability of any token that the sampling policy can choose. Above 0 the policy stays soft.
    """

    kinks: tuple[float, ...] = ()
    radius: float = 1.0
    floor: float = 0.0

    def __call__(self, policy: Policy, pool: Pool) -> dict[str, float]:
        if not isinstance(policy, TablePolicy):
            raise ValueError(f"the maximizer needs a TablePolicy, not a {type(policy).__name__}")
        if pool.nodes.shape[1] != 1:
            raise ValueError(f"the maximizer needs one-token actions; these have up to {pool.nodes.shape[1]}")
        rows, tokens = policy.rows[pool.nodes[:, 0]], pool.tokens[:, 0]
        shape = policy.logits.shape
        sampled = torch.zeros(shape, dtype=policy.logits.dtype)
        sampled[policy.rows] = pool.sampled_from

        def objective_at(probs: Tensor) -> Tensor:
            """Return the pool's objective for probabilities `probs`, split by row and token [rows, V]."""
            logprobs_NL = probs[rows, tokens].log()[:, None]
            values = pool.evaluate(logprobs_NL, torch.full_like(logprobs_NL, torch.nan))  # no entropy term
            return torch.zeros_like(probs).index_put((rows, tokens), values, accumulate=True) / pool.normalizer

        # A token that was never possible has no ratio: its only point is probability 0.
        bottom = torch.where(sampled > 0, (sampled - self.radius).clamp(min=self.floor), 0.0)
        top = torch.where(sampled > 0, (sampled + self.radius).clamp(max=1), 0.0)
        # Ratio 1 is not a kink; it splits the pieces so that ties are filled up to the old policy first.
        ratios = sorted({*self.kinks, 1.0})
        points = [bottom, *((ratio * sampled).maximum(bottom).minimum(top) for ratio in ratios), top]
        heights = [objective_at(point) for point in points]
        lengths = torch.stack([right - left for left, right in pairwise(points)], dim=2)
        rises = torch.stack([right - left for left, right in pairwise(heights)], dim=2)
        for (left, right), (low, high) in zip(pairwise(points), pairwise(heights), strict=True):
            bend = (objective_at((left + right) / 2) - (low + high) / 2).abs().max()
            if not bend <= 1e-9 * max(1.0, float(torch.stack(heights).abs().max())):
                raise ValueError(
                    f"the objective is not linear between its kinks {self.kinks}: it bends by {bend:.1e}. The kinks "
                    "must be 1 - low and 1 + high of its clip; KL and entropy terms are not supported"
                )
        slopes = (rises / torch.where(lengths > 0, lengths, 1.0)).flatten(1)
        # Round relative to the steepest slope, so that the last digit does not decide ties.
        steepest = slopes.abs().amax(1, keepdim=True).clamp(min=1e-300)
        slopes = torch.where(lengths.flatten(1) > 0, (slopes / steepest).round(decimals=9), float("-inf"))

        # Pieces are ordered by token, then by ratio. A stable sort by slope after one by piece keeps the smaller ratios
        # first among equal slopes.
        num_pieces = lengths.shape[2]
        by_piece = torch.arange(num_pieces).repeat(shape[1]).argsort(stable=True)
        order = by_piece[slopes[:, by_piece].argsort(dim=1, descending=True, stable=True)]
        sizes = lengths.flatten(1).gather(1, order)
        remaining = 1 - bottom.sum(1, keepdim=True)
        assigned = (remaining - (sizes.cumsum(1) - sizes)).clamp(min=0).minimum(sizes)
        probs = bottom.scatter_add(1, order // num_pieces, assigned)
        # Remove the remainders of rounding: an action of probability 0 must stay at 0.
        probs = torch.where(probs < 1e-12, 0.0, probs)
        probs = probs / probs.sum(1, keepdim=True)
        with torch.no_grad():
            moved = rows.unique()
            policy.logits[moved] = probs[moved].log()
        return {}


@dataclass(frozen=True)
class TrustRegion:
    """TRPO step: conjugate gradients on the Fisher matrix, then a line search within a KL constraint.

    The constraint is on the KL between the policies before and after the step, averaged over the pool's nodes by their
    probability.

    Attributes:
        max_kl: Largest average KL of a step.
        cg_iterations: Iterations of conjugate gradients.
        damping: Multiple of the identity added to the Fisher matrix.
        backtrack: Factor on the step after each failed attempt of the line search.
        max_backtracks: Attempts before the step is abandoned.
    """

    max_kl: float
    cg_iterations: int = 20
    damping: float = 1e-6
    backtrack: float = 0.8
    max_backtracks: int = 20

    def __post_init__(self) -> None:
        check_at_least("max_kl", self.max_kl, 0)

    def __call__(self, policy: Policy, pool: Pool) -> dict[str, float]:
        parameters = list(policy.parameters().values())
        nodes = pool.nodes[pool.mask].unique()
        weights = pool.reach()[nodes]
        weights = weights / weights.sum()
        before = policy.log_probs()[nodes].detach()

        def kl() -> Tensor:
            after = policy.log_probs()[nodes]
            return weights @ (before.exp() * (before - after)).sum(1)

        def flat(tensors: tuple[Tensor, ...]) -> Tensor:
            return torch.cat([tensor.flatten() for tensor in tensors])

        value = pool.value(policy.log_probs())
        gradient = flat(torch.autograd.grad(value, parameters))
        kl_gradient = flat(torch.autograd.grad(kl(), parameters, create_graph=True))

        def fisher_times(vector: Tensor) -> Tensor:
            product = torch.autograd.grad(kl_gradient @ vector, parameters, retain_graph=True)
            return flat(product) + self.damping * vector

        direction = conjugate_gradients(fisher_times, gradient, self.cg_iterations)
        curvature = direction @ fisher_times(direction)
        metrics = {"grad_norm": float(gradient.norm())}
        if curvature <= 0:
            return metrics | {"step_fraction": 0.0}
        full_step = direction * (2 * self.max_kl / curvature).sqrt()

        start = flat(tuple(parameter.detach().clone() for parameter in parameters))
        fraction = 1.0
        for _ in range(self.max_backtracks):
            set_parameters(parameters, start + fraction * full_step)
            with torch.no_grad():
                if kl() <= self.max_kl * (1 + 1e-6) and pool.value(policy.log_probs()) > value:
                    return metrics | {"step_fraction": fraction}
            fraction *= self.backtrack
        set_parameters(parameters, start)
        return metrics | {"step_fraction": 0.0}


def conjugate_gradients(matvec: Callable[[Tensor], Tensor], target: Tensor, iterations: int) -> Tensor:
    """Solve matvec(x) = target for a symmetric positive definite linear map."""
    solution = torch.zeros_like(target)
    residual, direction = target.clone(), target.clone()
    square = residual @ residual
    for _ in range(iterations):
        if square < 1e-20:
            break
        product = matvec(direction)
        step = square / (direction @ product)
        solution = solution + step * direction
        residual = residual - step * product
        square, previous = residual @ residual, square
        direction = residual + square / previous * direction
    return solution


def set_parameters(parameters: list[Tensor], values: Tensor) -> None:
    with torch.no_grad():
        for parameter, part in zip(parameters, values.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))
