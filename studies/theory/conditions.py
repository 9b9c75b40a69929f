"""Claims about settings that Theorem 2 excludes: other update orders and stochastic transitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from seeupo.core.order import Order
from studies.exact import ExactEngine, GradientAscent, Maximizer, Problem, TablePolicy
from studies.exact.updates import UpdateRule
from studies.theory.backbones import small_mdp
from studies.theory.sequential import ORDERS, exact_seeupo, identity_gaps
from studies.theory.setting import (
    CLIPPED_MAXIMIZER,
    Falls,
    MakeProblem,
    Scale,
    best_return,
    random_bandit,
    random_network,
    random_table,
    returns_over_iterations,
    total_variation,
)
from studies.theory.verdict import Check, Claim, Scope

FLOOR = 0.01
"""Lowest probability of any action where policies are kept soft."""


def update_orders(scale: Scale) -> Claim:
    def check(order: Order, label: str, rule: Maximizer, *, problems: int, iterations: int) -> Check:
        """Run one order until the policy no longer changes, then let every order continue from the end point."""
        gaps: list[float] = []
        moves: list[float] = []
        needed: list[int] = []
        for number in range(problems):
            generator = scale.generator("orders", number)
            problem = random_bandit(generator)
            engine = ExactEngine(problem, random_table(problem, generator), rule)
            returns = returns_over_iterations(engine, exact_seeupo(order, rule), iterations, generator=generator)
            gaps.append(best_return(problem, rule) - returns[-1])
            needed.append(len(returns) - 2)  # the last iteration changed nothing
            for other in ORDERS:
                continued = ExactEngine(problem, TablePolicy(engine.log_policy()), rule)
                exact_seeupo(other, rule).update(continued, continued.enumerate(), generator=generator)
                moves.append(total_variation(engine.log_policy(), continued.log_policy()))
        stuck = max(gaps) > 1e-6
        figures = {
            "solved": sum(gap <= 1e-6 for gap in gaps),
            "problems": problems,
            "largest_gap": max(gaps),
            "mean_iterations": sum(needed) / problems,
            "largest_move_of_another_order": max(moves),
        }
        if order == "reverse":
            scope = Scope.COMPARISON if rule.floor == 0 else Scope.CLAIM
            return Check(f"{order} order reaches J*: {label}", not stuck, figures, scope)
        case = {
            "order": order,
            "largest gap to J* over all problems": max(gaps),
            "why": "a fixed point of any order is a policy that no turn can improve; where every history has positive "
            "probability, backward induction over its turns shows that it is optimal",
        }
        scope = Scope.CLAIM if rule.floor else Scope.PRACTICE
        setting = f"{order} order stops short of J*: {label}"
        return Check(setting, stuck, figures, scope, counterexample=None if stuck or not rule.floor else case)

    soft = f"every probability at least {FLOOR:g}"
    rules = [
        (f"maximizer, {soft}", Maximizer(floor=FLOOR), scale.problems, 20),
        (f"clipped maximizer, {soft}", replace(CLIPPED_MAXIMIZER, floor=FLOOR), scale.few, 200),
        ("maximizer, probabilities may become 0", Maximizer(), scale.problems, 20),
    ]
    return Claim(
        id=14,
        title="Update orders",
        claim=(
            "Only reverse order is guaranteed to reach J*; the fixed points of other orders need not be optimal "
            "(Appendix B, on non-reverse orders)."
        ),
        problems=(
            f"{scale.problems} random bandits ({scale.few} for the clipped maximizer): 2 contexts, 3 turns, 3 actions, "
            "separate parameters, until the policy no longer changes"
        ),
        checks=[
            check(order, label, rule, problems=problems, iterations=iterations)
            for label, rule, problems, iterations in rules
            for order in ORDERS
        ],
        qualification=(
            "Policies that may become deterministic: the unclipped maximizer commits after one sweep, and only reverse "
            "order commits to the best actions. But there reverse order has no guarantee either (claim 2)."
        ),
    )


def unobserved(problem: Problem) -> Problem:
    """Return the same problem for policies that observe s_0 and their own earlier actions but not the state."""
    index: dict[tuple[int, ...], int] = {}
    nodes = torch.full_like(problem.nodes, -1)
    for path, (context, tokens) in enumerate(
        zip(problem.contexts.tolist(), problem.tokens[:, :, 0].tolist(), strict=True)
    ):
        for turn in range(problem.num_turns):
            nodes[path, turn] = index.setdefault((context, *tokens[:turn]), len(index))
    return replace(problem, nodes=nodes)


def share_of_chance(problem: Problem, log_policy: Tensor) -> float:
    """Return the share of the variance of the return that s_0 and the actions do not explain."""
    probs, returns = problem.path_probs(log_policy), problem.returns
    labels = torch.cat([problem.contexts[:, None], problem.tokens[:, :, 0]], dim=1)
    groups, inverse = labels.unique(dim=0, return_inverse=True)
    weight = torch.zeros(len(groups), dtype=probs.dtype).index_add(0, inverse, probs)
    mean = torch.zeros_like(weight).index_add(0, inverse, probs * returns) / weight.clamp(min=1e-300)
    return float(probs @ (returns - mean[inverse]) ** 2 / (probs @ (returns - probs @ returns) ** 2))


def stochastic_transitions(scale: Scale) -> Claim:
    def count_falls(rule: UpdateRule, *, network: bool = False) -> Falls:
        falls = Falls()
        for number in range(scale.few if network else scale.problems):
            generator = scale.generator("transitions", number)
            problem = small_mdp(generator)
            policy = random_network(problem, generator) if network else random_table(problem, generator)
            engine = ExactEngine(problem, policy, rule)
            algorithm = exact_seeupo("reverse", rule, steps=4 if network else 1)
            falls.count(returns_over_iterations(engine, algorithm, 6), problem=number)
        return falls

    def gaps_after_one_sweep(make_problem: MakeProblem) -> list[float]:
        gaps = []
        for number in range(scale.problems):
            generator = scale.generator("transitions", number)
            problem = make_problem(generator)
            observed_best = small_mdp(scale.generator("transitions", number)).best_return()
            engine = ExactEngine(problem, random_table(problem, generator), Maximizer())
            exact_seeupo("reverse", Maximizer()).update(engine, engine.enumerate())
            gaps.append(observed_best - engine.expected_return())
        return gaps

    checks = []
    for label, rule in [("clipped maximizer", CLIPPED_MAXIMIZER), ("unclipped maximizer", Maximizer())]:
        checks.append(count_falls(rule).check(f"J never falls: {label}, separate parameters"))
    errors, shares = [], []
    for number, order in product(range(scale.problems), ORDERS):
        generator = scale.generator("transitions", number)
        problem = small_mdp(generator)
        policy = random_table(problem, generator)
        shares.append(share_of_chance(problem, policy.log_probs().detach()))
        pairs = identity_gaps(problem, policy, CLIPPED_MAXIMIZER, order=order, generator=generator)
        errors += [abs(expected - gained) for expected, gained in pairs]
    observed, blind = gaps_after_one_sweep(small_mdp), gaps_after_one_sweep(lambda g: unobserved(small_mdp(g)))
    network = count_falls(GradientAscent(10.0), network=True)
    checks += [
        Check("the identity behind M (claim 11) holds", max(errors) < 1e-10, {"largest_error": max(errors)}),
        Check(
            "one sweep in reverse order reaches J*: each turn observes the state",
            max(observed) < 1e-6,
            {"largest_gap": max(observed), "mean_gap": sum(observed) / len(observed)},
        ),
        Check(
            "one sweep in reverse order reaches J*: each turn observes s_0 and earlier actions only",
            max(blind) < 1e-6,
            {"largest_gap": max(blind), "mean_gap": sum(blind) / len(blind)},
            Scope.PRACTICE,
        ),
        Check(
            "the reward is a function of s_0 and the actions",
            max(shares) < 1e-9,
            {"mean_share_of_variance_from_transitions": sum(shares) / len(shares), "largest": max(shares)},
            Scope.PRACTICE,
        ),
        network.check("J never falls: 4 gradient steps (lr 10), shared network", Scope.PRACTICE),
    ]
    return Claim(
        id=15,
        title="Stochastic transitions",
        claim=(
            "The guarantees, proved for problems without state transitions (Section 4.1, Appendix B), carry over to "
            "environments that respond at random."
        ),
        problems=f"{scale.problems} random MDPs ({scale.few} for gradient steps): 3 states, 2 actions, horizon 3",
        checks=checks,
        curves={"observed": observed, "unobserved": blind, "share_of_chance": shares[:: len(ORDERS)]},
    )
