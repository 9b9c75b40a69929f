"""Claims about settings that the theorems exclude or leave open: update order, stochastic transitions, KL penalty."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from seeupo.core.order import Order
from seeupo.engines.exact import ExactEngine, GradientAscent, Maximizer, Problem, TablePolicy, TrustRegion
from seeupo.engines.exact.updates import UpdateRule
from seeupo.studies.theory.backbones import small_mdp
from seeupo.studies.theory.sequential import ORDERS, exact_seeupo, identity_gaps
from seeupo.studies.theory.setting import (
    CLIPPED_MAXIMIZER,
    Falls,
    MakeProblem,
    Scale,
    best_return,
    flat_parameters,
    random_bandit,
    random_network,
    random_table,
    returns_over_iterations,
    rounded,
    total_variation,
)
from seeupo.studies.theory.verdict import Check, Claim, Scope

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
        falls = count_falls(rule)
        checks.append(
            Check(
                f"J never falls: {label}, separate parameters",
                falls.falls == 0,
                falls.figures,
                counterexample=falls.case,
            )
        )
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
        Check(
            "J never falls: 4 gradient steps (lr 10), shared network",
            network.falls == 0,
            network.figures,
            Scope.PRACTICE,
            counterexample=network.case,
        ),
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


KL_COEF = 0.002
"""Coefficient of the KL penalty in the paper's experiments."""


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


def kl_penalty(scale: Scale) -> Claim:
    def count_falls(
        rule: UpdateRule, kl_coef: float, *, steps: int = 1, iterations: int = 30
    ) -> tuple[Falls, list[float]]:
        """Train from the reference policy; return the falls of J and the gaps to J* at the end."""
        falls, gaps = Falls(), []
        for number in range(scale.few):
            generator = scale.generator("kl", number)
            problem = random_bandit(generator)
            engine = ExactEngine(problem, random_table(problem, generator), rule)
            algorithm = replace(exact_seeupo("reverse", rule, steps=steps), kl_coef=kl_coef)
            returns = returns_over_iterations(engine, algorithm, iterations)
            falls.count(returns, problem=number)
            gaps.append(problem.best_return() - returns[-1])
        return falls, gaps

    coefficients = (2e-4, KL_COEF, 2e-2, 2e-1)
    gaps: dict[float, list[float]] = {coef: [] for coef in coefficients}
    moves: dict[str, list[float]] = {"regularized optimum": [], "best policy": []}
    supports, drops = [], []
    turns = 0
    for number in range(scale.problems):
        generator = scale.generator("kl", number)
        problem = random_bandit(generator)
        reference = random_table(problem, generator).log_probs().detach()
        best, turns = problem.best_return(), problem.num_turns
        for coef in coefficients:
            log_policy = regularized_optimum(problem, reference, coef)
            gaps[coef].append(best - float(problem.expected_return(log_policy)))
            if coef == KL_COEF:
                optimum = log_policy
        # Rewards lie in [0, 1], so multiplier - Q is at most 1 + coef.
        supports.append(float((optimum.exp() * (1 + KL_COEF) / (KL_COEF * reference.exp())).min()))
        for name, start in [("regularized optimum", optimum), ("best policy", nearly_best(problem))]:
            for order in ORDERS:
                policy = TablePolicy(reference)
                engine = ExactEngine(problem, policy, GradientAscent(1.0))
                policy.logits.data.copy_(start)
                before, returned = flat_parameters(policy), engine.expected_return()
                algorithm = replace(exact_seeupo(order, engine.update), kl_coef=KL_COEF)
                algorithm.update(engine, engine.enumerate(), generator=generator)
                moves[name].append(float((flat_parameters(policy) - before).norm()))
                if name == "best policy":
                    drops.append(returned - engine.expected_return())

    with_kl, ends = count_falls(TrustRegion(0.02), KL_COEF)
    without, ends_without = count_falls(TrustRegion(0.02), 0.0)
    by_gradient, _ = count_falls(GradientAscent(3.0), KL_COEF, steps=4)
    paper_gaps = gaps[KL_COEF]
    case: dict[str, Any] = {
        "problem": 0,
        "coefficient": KL_COEF,
        "J* - J of the regularized optimum, by problem": rounded(paper_gaps),
        "why": "the penalty pulls towards the reference at the best policy too; its own fixed point is another policy",
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
            Check(
                "J never falls: trust-region steps from the reference policy",
                with_kl.falls == 0,
                with_kl.figures | {"falls_without_KL": without.falls},
                counterexample=with_kl.case,
            ),
            Check(
                "J reaches J*: fixed point",
                max(paper_gaps) < 1e-6,
                {"mean_gap": sum(paper_gaps) / len(paper_gaps), "largest_gap": max(paper_gaps)},
                counterexample=None if max(paper_gaps) < 1e-6 else case,
            ),
            Check(
                "J never falls: one gradient step from the best policy, every order",
                max(drops) < 1e-9,
                {"falls": sum(drop > 1e-9 for drop in drops), "iterations": len(drops), "largest_fall": max(drops)},
            ),
            Check(
                "J never falls: 4 gradient steps (lr 3) from the reference policy",
                by_gradient.falls == 0,
                by_gradient.figures,
                Scope.PRACTICE,
                counterexample=by_gradient.case,
            ),
            Check(
                "the regularized optimum is a fixed point of every order",
                max(moves["regularized optimum"]) < 1e-9,
                {name.replace(" ", "_"): max(found) for name, found in moves.items()},
                Scope.COMPARISON,
            ),
            Check(
                "trust-region steps end at the regularized optimum (to within 0.001)",
                max(abs(end - gap) for end, gap in zip(ends, paper_gaps, strict=False)) < 1e-3,
                {
                    "mean_gap_to_J*": sum(ends) / len(ends),
                    "of_the_regularized_optimum": sum(paper_gaps[: len(ends)]) / len(ends),
                    "without_KL": sum(ends_without) / len(ends_without),
                },
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
            "return the penalty keeps every action's probability positive, the condition that claims 2 and 6 need."
        ),
    )


def nearly_best(problem: Problem, floor: float = 1e-4) -> Tensor:
    """Return log-probs of the best policy whose every probability is at least `floor`."""
    engine = ExactEngine(
        problem,
        TablePolicy(torch.zeros(problem.num_nodes, problem.num_tokens, dtype=torch.float64)),
        Maximizer(floor=floor),
    )
    exact_seeupo("reverse", engine.update).update(engine, engine.enumerate())
    return engine.log_policy()
