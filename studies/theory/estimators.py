"""Claims about advantage estimators: the bias of GAE and GRAE, and the policy gradient with GRAE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor

from seeupo.core.advantages import Baseline, gae, group_advantages
from studies.exact import Problem
from studies.exact.policy import Policy
from studies.exact.problem import mdp
from studies.theory.setting import Scale, flat_gradient, random_bandit, random_mdp, random_table
from studies.theory.verdict import Check, Claim, Scope

DISCOUNTS = ((0.9, 0.0), (0.9, 0.5), (0.9, 0.95), (0.99, 0.5), (0.99, 0.95))
"""Pairs (gamma, lambda)."""
LEAVE_ONE_OUT = (
    "Leave-one-out, which the paper omits for ease of discussion (Section 2.2), removes the factor (G-1)/G that the "
    "trajectory's own reward in the group mean causes."
)


def gae_bound(gamma: float, lam: float) -> float:
    """Return the paper's factor on the largest error of the critic."""
    return (1 + gamma - 2 * gamma * lam) / (1 - gamma * lam)


def gae_bias(problem: Problem, log_policy: Tensor, critic_error: Tensor, gamma: float, lam: float) -> Tensor:
    """Return E[GAE | node, token] - A(node, token) [nodes, V] for a critic that is off by critic_error [nodes]."""
    value, action_value = problem.value_at_nodes(log_policy, problem.discounted_to_go(gamma))
    nodes = problem.nodes[:, :, 0]
    estimated, _ = gae(
        problem.rewards, (value + critic_error)[nodes], torch.ones_like(nodes, dtype=torch.bool), gamma=gamma, lam=lam
    )
    _, mean_estimate = problem.value_at_nodes(log_policy, estimated)
    possible = problem.reach(log_policy) > 0
    return (mean_estimate - (action_value - value[:, None]))[possible]


def gae_bias_bound(scale: Scale) -> Claim:
    checks = []
    curves: dict[str, Any] = {"random_errors": {}, "worst_case": {}}
    for gamma, lam in DISCOUNTS:
        fractions, perfect = [], 0.0
        for number in range(scale.problems):
            generator = scale.generator("gae", number)
            problem = random_mdp(generator)
            log_policy = random_table(problem, generator).log_probs().detach()
            error = torch.randn(problem.num_nodes, generator=generator, dtype=torch.float64)
            bound = gae_bound(gamma, lam) * float(error.abs().max())
            fractions.append(float(gae_bias(problem, log_policy, error, gamma, lam).abs().max()) / bound)
            none = gae_bias(problem, log_policy, torch.zeros_like(error), gamma, lam)
            perfect = max(perfect, float(none.abs().max()))
        # The worst critic is too low in the first state and too high in all later ones; one action suffices.
        worst = {}
        for horizon in (2, 5, 20, 100):
            line = mdp(torch.ones(1), torch.ones(1, 1, 1), torch.zeros(1, 1, dtype=torch.float64), horizon=horizon)
            error = torch.ones(horizon, dtype=torch.float64)
            error[0] = -1
            bias = gae_bias(line, torch.zeros(horizon, 1, dtype=torch.float64), error, gamma, lam)
            worst[str(horizon)] = float(bias.abs().max()) / gae_bound(gamma, lam)
        where = f"gamma {gamma}, lambda {lam}"
        curves["random_errors"][where] = fractions
        curves["worst_case"][where] = worst
        figures = {
            "bias_over_bound_mean": sum(fractions) / len(fractions),
            "bias_over_bound_max": max(fractions),
            "bias_over_bound_worst_case_horizon_100": worst["100"],
            "bias_with_a_perfect_critic": perfect,
        }
        held = max(*fractions, *worst.values()) <= 1 + 1e-9 and perfect < 1e-10
        checks.append(Check(where, held, figures))
    return Claim(
        id=3,
        title="GAE's bias bound",
        claim=(
            "The bias of GAE is at most (1 + gamma - 2 gamma lambda) / (1 - gamma lambda) times the critic's largest "
            "error (Theorem 3)."
        ),
        problems=(
            f"{scale.problems} random MDPs (3 states, 2 actions, horizon 4) with Gaussian critic errors; "
            "one line of states with the worst errors"
        ),
        checks=checks,
        curves=curves,
    )


GROUP_SIZES = (2, 3, 4)
SHOWN_GROUP: tuple[Baseline, int] = ("mean", 2)
"""Baseline and group size of the counterexample that is shown."""


def all_groups(problem: Problem, size: int, baseline: Baseline) -> tuple[Tensor, Tensor]:
    """Return every possible group of paths [groups, size] of a problem with one context, and its GRAE advantages."""
    groups = torch.tensor(list(product(range(len(problem.returns)), repeat=size)))
    rewards = problem.returns[groups].flatten()
    labels = torch.arange(len(groups)).repeat_interleave(size)
    return groups, group_advantages(rewards, labels, normalize="none", baseline=baseline).view_as(groups)


def expected_group_gradient(problem: Problem, size: int, baseline: Baseline, policy: Policy) -> Tensor:
    """Return the mean over all possible groups of the GRAE-REINFORCE gradient."""
    log_paths = problem.log_prob_of_turns(policy.log_probs()).sum(1)
    groups, advantages = all_groups(problem, size, baseline)
    probability = log_paths.detach()[groups].sum(1).exp()
    surrogate = (probability[:, None] * advantages * log_paths[groups]).sum() / size
    return flat_gradient(surrogate, policy)


def expected_group_advantages(problem: Problem, size: int, baseline: Baseline, log_policy: Tensor) -> Tensor:
    """Return the mean of GRAE's advantage given one member's path [paths], over all that the others may be."""
    groups, advantages = all_groups(problem, size, baseline)
    others = problem.log_prob_of_turns(log_policy).sum(1)[groups[:, 1:]].sum(1).exp()
    return torch.zeros_like(problem.returns).index_add(0, groups[:, 0], others * advantages[:, 0])


def factor_between(gradient: Tensor, true: Tensor) -> float:
    """Return the factor c with gradient = c * true; nan if there is none."""
    factor = gradient @ true / (true @ true)
    return float(factor) if (gradient - factor * true).norm() / true.norm() < 1e-10 else float("nan")


def factor_checks(
    statement: str, factors: Mapping[tuple[Baseline, int], Sequence[float]], case: dict[str, Any]
) -> list[Check]:
    """Check that all factors are 1, for each baseline and group size; `case` is the counterexample of SHOWN_GROUP."""
    checks = []
    for group, values in factors.items():
        baseline, size = group
        exact = all(abs(factor - 1) < 1e-10 for factor in values)
        setting = f"{statement}: {baseline.replace('_', ' ')} of G = {size}"
        figures = {"factor": values[0], "(G-1)/G": (size - 1) / size}
        scope = Scope.CLAIM if baseline == "mean" else Scope.COMPARISON
        counterexample = case if group == SHOWN_GROUP and not exact else None
        checks.append(Check(setting, exact, figures, scope, counterexample=counterexample))
    return checks


def structural_bias(problem: Problem, log_policy: Tensor) -> tuple[Tensor, Tensor]:
    """Return GRAE's bias and V(s_t) - V(s_0) at every reachable node and token, for an infinite group.

    The estimate is based on total returns; A, Q and V count future rewards only.
    """
    value, action_value = problem.value_at_nodes(log_policy, problem.discounted_to_go(1.0))
    start = problem.expected_return(log_policy)
    centered = (problem.returns - start)[:, None].expand_as(problem.rewards)
    _, estimate = problem.value_at_nodes(log_policy, centered)
    reached = problem.reach(log_policy) > 0
    bias = estimate - (action_value - value[:, None])
    return bias[reached], (value - start)[:, None].expand_as(bias)[reached]


def grae_bias_and_gradient(scale: Scale) -> Claim:
    bias_errors: dict[str, list[float]] = {"at the end": [], "every turn": []}
    biases: dict[str, list[float]] = {"at the end": [], "every turn": []}
    limit_errors, discounted_errors, cosines = [], [], []
    factors: dict[tuple[Baseline, int], list[float]] = {}
    for number in range(scale.problems):
        generator = scale.generator("grae", number)
        problem = random_mdp(generator)
        policy = random_table(problem, generator)
        log_policy = policy.log_probs().detach()
        last = torch.eye(problem.num_turns, dtype=torch.float64)[-1]
        for rewards, case in [
            ("at the end", replace(problem, rewards=problem.rewards * last)),
            ("every turn", problem),
        ]:
            bias, difference_of_values = structural_bias(case, log_policy)
            bias_errors[rewards].append(float((bias - difference_of_values).abs().max()))
            biases[rewards].append(float(bias.abs().mean()))

        # An infinite group: the baseline is V(s_0).
        log_paths = problem.log_prob_of_turns(policy.log_probs()).sum(1)
        centered = problem.returns - problem.expected_return(log_policy)
        gradient = flat_gradient((problem.path_probs(log_policy) * centered * log_paths).sum(), policy)
        true = flat_gradient(problem.expected_return(policy.log_probs()), policy)
        limit_errors.append(float((gradient - true).norm() / true.norm()))

        discounts = 0.9 ** torch.arange(problem.num_turns, dtype=torch.float64)
        discounted = problem.path_probs(policy.log_probs()) @ (problem.rewards @ discounts)
        true = flat_gradient(discounted, policy)
        discounted_errors.append(float((gradient - true).norm() / true.norm()))
        cosines.append(float(torch.cosine_similarity(gradient, true, dim=0)))

        small = random_bandit(generator, contexts=1, actions=2, turns=2)
        policy = random_table(small, generator)
        true = flat_gradient(small.expected_return(policy.log_probs()), policy)
        for baseline, size in product(get_args(Baseline), GROUP_SIZES):
            gradient = expected_group_gradient(small, size, baseline, policy)
            factors.setdefault((baseline, size), []).append(factor_between(gradient, true))
            if (baseline, size) == SHOWN_GROUP:
                shown = {
                    "returns of the four paths": small.returns.tolist(),
                    "their probabilities": small.path_probs(policy.log_probs().detach()).tolist(),
                    "gradient of J": true.tolist(),
                    "expected gradient of GRAE": gradient.tolist(),
                }

    checks = [
        Check(
            f"the bias is V(s_t) - V(s_0): infinite group, rewards {rewards}",
            max(errors) < 1e-10,
            {"largest_error": max(errors), "mean_absolute_bias": sum(biases[rewards]) / len(biases[rewards])},
        )
        for rewards, errors in bias_errors.items()
    ]
    checks.append(
        Check(
            "the gradient is right at gamma = 1: infinite group",
            max(limit_errors) < 1e-10,
            {"largest_relative_error": max(limit_errors)},
        )
    )
    checks += factor_checks("the gradient is right at gamma = 1", factors, shown)
    checks.append(
        Check(
            "the gradient is off at gamma = 0.9, as the paper says",
            min(discounted_errors) > 1e-6,
            {
                "mean_relative_error": sum(discounted_errors) / len(discounted_errors),
                "mean_cosine": sum(cosines) / len(cosines),
                "smallest_cosine": min(cosines),
            },
        )
    )
    return Claim(
        id=4,
        title="GRAE's bias and gradient",
        claim=(
            "GRAE's advantage is off by V(s_t) - V(s_0), yet its policy gradient is unbiased at gamma = 1; below, it "
            "is biased (Theorem 4)."
        ),
        problems=(
            f"{scale.problems} random MDPs (3 states, 2 actions, horizon 4); "
            "all possible groups in as many bandits with two turns and two actions"
        ),
        checks=checks,
        curves={
            "factors": {f"{baseline}, G = {size}": values[0] for (baseline, size), values in factors.items()},
            "cosine_at_gamma_0.9": cosines,
        },
        qualification=f"{LEAVE_ONE_OUT} The formula of the bias needs rewards at the end of the episode only.",
    )
