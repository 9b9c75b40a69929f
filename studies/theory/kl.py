"""The claim about the KL penalty that the paper trains with and its theorems leave out."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seeupo.core.order import Order
from studies.exact import ExactEngine, GradientAscent, Maximizer, Problem, TablePolicy, TrustRegion
from studies.exact.updates import UpdateRule
from studies.theory.sequential import ORDERS, exact_seeupo
from studies.theory.setting import (
    FALL_TOLERANCE,
    Falls,
    Scale,
    flat_parameters,
    random_bandit,
    random_table,
    returns_over_iterations,
    rounded,
)
from studies.theory.verdict import Check, Claim, Scope

KL_COEF = 0.002
"""Coefficient of the KL penalty in the paper's experiments."""
COEFFICIENTS = (2e-4, KL_COEF, 2e-2, 2e-1)


def regularized_optimum(problem: Problem, reference: Tensor, coef: float) -> Tensor:
    """Return the policy that maximizes E[Q] - coef * KL(reference || policy) at every node, by backward induction.

    The k3 penalty has the gradient of this KL. It does not enter Q, because M carries rewards only. With Q given,
    policy = coef * reference / (multiplier - Q), where the multiplier makes the probabilities sum to 1.
    """
    log_policy = reference.clone()
    for node in problem.nodes.flatten(1).T.flip(0):
        here = node[node >= 0].unique()
        weights = coef * reference[here].exp()
        action_value = problem.value_at_nodes(log_policy)[1][here]
        low, high = (action_value + weights).amax(1), action_value.amax(1) + coef
        for _ in range(100):
            middle = (low + high) / 2
            too_much = (weights / (middle[:, None] - action_value)).sum(1) > 1
            low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
        log_policy[here] = (weights / (high[:, None] - action_value)).log().log_softmax(1)
    return log_policy


def nearly_best(problem: Problem, floor: float = 1e-4) -> Tensor:
    """Return log-probs of the best policy whose every probability is at least `floor`."""
    uniform = TablePolicy(torch.zeros(problem.num_nodes, problem.num_tokens, dtype=torch.float64))
    engine = ExactEngine(problem, uniform, Maximizer(floor=floor))
    exact_seeupo("reverse", engine.update).update(engine, engine.enumerate())
    return engine.log_policy()


def step_from(
    start: Tensor, problem: Problem, reference: Tensor, order: Order, generator: torch.Generator
) -> tuple[float, float]:
    """Take one gradient step per turn with the penalty; return the distance moved and the decrease of J."""
    policy = TablePolicy(reference)
    engine = ExactEngine(problem, policy, GradientAscent(1.0))
    policy.logits.data.copy_(start)
    before, returned = flat_parameters(policy), engine.expected_return()
    algorithm = replace(exact_seeupo(order, engine.update), kl_coef=KL_COEF)
    algorithm.update(engine, engine.enumerate(), generator=generator)
    return float((flat_parameters(policy) - before).norm()), returned - engine.expected_return()


def falls_from_reference(scale: Scale, rule: UpdateRule, kl_coef: float, *, steps: int = 1) -> Falls:
    """Train for 30 iterations from the reference policy and count the falls of J."""
    falls = Falls()
    for number in range(scale.few):
        generator = scale.generator("kl", number)
        problem = random_bandit(generator)
        engine = ExactEngine(problem, random_table(problem, generator), rule)
        algorithm = replace(exact_seeupo("reverse", rule, steps=steps), kl_coef=kl_coef)
        falls.count(returns_over_iterations(engine, algorithm, 30), problem=number)
    return falls


def kl_penalty(scale: Scale) -> Claim:
    gaps: dict[float, list[float]] = {coef: [] for coef in COEFFICIENTS}
    from_optimum: list[tuple[float, float]] = []
    from_best: list[tuple[float, float]] = []
    supports: list[float] = []
    for number in range(scale.problems):
        generator = scale.generator("kl", number)
        problem = random_bandit(generator)
        reference = random_table(problem, generator).log_probs().detach()
        optima = {coef: regularized_optimum(problem, reference, coef) for coef in COEFFICIENTS}
        for coef, log_policy in optima.items():
            gaps[coef].append(problem.best_return() - float(problem.expected_return(log_policy)))
        # Rewards lie in [0, 1], so multiplier - Q is at most 1 + coef.
        supports.append(float((optima[KL_COEF].exp() * (1 + KL_COEF) / (KL_COEF * reference.exp())).min()))
        for start, steps in ((optima[KL_COEF], from_optimum), (nearly_best(problem), from_best)):
            steps += [step_from(start, problem, reference, order, generator) for order in ORDERS]

    with_kl = falls_from_reference(scale, TrustRegion(0.02), KL_COEF)
    without = falls_from_reference(scale, TrustRegion(0.02), 0.0).falls
    by_gradient = falls_from_reference(scale, GradientAscent(3.0), KL_COEF, steps=4)
    turns, paper_gaps = problem.num_turns, gaps[KL_COEF]
    largest_move = max(move for move, _ in from_optimum)
    drops = [drop for _, drop in from_best]
    case = {
        "coefficient": KL_COEF,
        "J* - J of the regularized optimum, by problem": rounded(paper_gaps),
        "why": "the penalty pulls toward the reference at the best policy too; its own fixed point is another policy",
    }
    return Claim(
        id=16,
        title="The KL penalty",
        claim=(
            f"Trained with a KL penalty of {KL_COEF:g} to the start policy, as in the paper's experiments, SeeUPO "
            "still improves monotonically and converges to J* (Appendix B says that it meets all conditions of "
            "Theorem 2, whose objective has no such term)."
        ),
        problems=(
            f"{scale.problems} random bandits ({scale.few} for runs of 30 iterations): 2 contexts, 3 turns, 3 actions, "
            "rewards in [0, 1], separate parameters, k3 penalty"
        ),
        checks=[
            with_kl.check("J never falls: trust-region steps from the reference policy", falls_without_KL=without),
            Check(
                "J reaches J*: at the fixed point",
                max(paper_gaps) < 1e-6,
                {"mean_gap": sum(paper_gaps) / len(paper_gaps), "largest_gap": max(paper_gaps)},
                counterexample=None if max(paper_gaps) < 1e-6 else case,
            ),
            Check(
                "J never falls: one gradient step from the best policy, every order",
                max(drops) < FALL_TOLERANCE,
                {
                    "iterations": len(drops),
                    "falls": sum(drop > FALL_TOLERANCE for drop in drops),
                    "largest_fall": max(drops),
                },
            ),
            by_gradient.check("J never falls: 4 gradient steps (lr 3) from the reference policy", Scope.PRACTICE),
            Check(
                "the regularized optimum is a fixed point of every order",
                largest_move < 1e-9,
                {"largest_move_from_it": largest_move, "from_the_best_policy": max(move for move, _ in from_best)},
                Scope.COMPARISON,
            ),
            Check(
                "the gap is at most the number of turns times the coefficient",
                all(max(found) <= turns * coef for coef, found in gaps.items()),
                {f"largest_gap_at_{coef:g}": max(found) for coef, found in gaps.items()},
                Scope.COMPARISON,
            ),
            Check(
                "every action keeps at least coef / (1 + coef) of its reference probability",
                min(supports) >= 1 - 1e-9,
                {"smallest_share_of_that_bound": min(supports)},
                Scope.COMPARISON,
            ),
        ],
        curves={"gaps": {f"{coef:g}": found for coef, found in gaps.items()}, "turns": turns},
        qualification=(
            "J* replaced by the regularized optimum, which lies at most T x 0.002 below it for rewards in [0, 1]. In "
            "return every action keeps a positive probability there, the condition that claims 2 and 6 need."
        ),
    )
