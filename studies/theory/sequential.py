"""Claims about sequential updates: monotonic improvement, global optimality, and the identity behind M."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from seeupo.algorithms import SeeUPO
from seeupo.algorithms.common.objective import Ratio
from seeupo.core.order import Order
from seeupo.protocols import Objective
from seeupo.types import AgentId, StepMetrics, Trajectory, Turn
from studies.exact import ExactEngine, GradientAscent, Maximizer, Problem, TrustRegion
from studies.exact.policy import Policy
from studies.exact.updates import UpdateRule
from studies.theory.setting import (
    CLIPPED_MAXIMIZER,
    Falls,
    MakeProblem,
    Scale,
    Setup,
    best_return,
    chain_case,
    chain_policy,
    clip_of,
    deceptive_chain,
    random_bandit,
    random_network,
    random_table,
    random_tree,
    returns_over_iterations,
    rounded,
)
from studies.theory.verdict import Check, Claim, Scope

ORDERS: tuple[Order, ...] = get_args(Order)
Pairs = list[tuple[float, float]]
"""The expectation and the change of J, for each updated turn."""
MakePairs = Callable[[int, Order], Pairs]


def exact_seeupo(order: Order, rule: UpdateRule, *, steps: int = 1, carry: bool = True) -> SeeUPO:
    """Return SeeUPO as in the proofs: raw advantages and product ratios."""
    return SeeUPO(
        order=order,
        normalize="none",
        ratio="product",
        clip=clip_of(rule),
        epochs=steps,
        carry=carry,
    )


def monotonic_improvement(scale: Scale) -> Claim:
    def check(setup: Setup, problems: int, *, carry: bool = True) -> Check:
        falls = Falls()
        algorithm = exact_seeupo("reverse", setup.rule, steps=setup.steps, carry=carry)
        for number in range(problems):
            for order in ORDERS:
                generator = scale.generator("monotonic", number)
                problem = random_bandit(generator)
                engine = ExactEngine(problem, setup.policy(problem, generator), setup.rule)
                ordered = replace(algorithm, order=order)
                returns = returns_over_iterations(engine, ordered, 6, generator=generator)
                falls.count(returns, problem=number, order=order)
        return falls.check(setup.label, setup.scope)

    clipped = Setup("clipped maximizer, separate parameters", random_table, CLIPPED_MAXIMIZER, scope=Scope.CLAIM)
    unclipped = Setup("unclipped maximizer, separate parameters", random_table, Maximizer(), scope=Scope.CLAIM)
    without_m = Setup("clipped maximizer, separate parameters, without M", random_table, CLIPPED_MAXIMIZER)
    by_gradient = [
        Setup("trust region (KL 0.02), separate parameters", random_table, TrustRegion(0.02)),
        Setup("4 gradient steps (lr 1), separate parameters", random_table, GradientAscent(1.0), 4),
        Setup("4 gradient steps (lr 30), separate parameters", random_table, GradientAscent(30.0), 4),
        Setup("4 gradient steps (lr 1), shared network", random_network, GradientAscent(1.0), 4),
        Setup("4 gradient steps (lr 10), shared network", random_network, GradientAscent(10.0), 4),
    ]
    return Claim(
        id=1,
        title="Monotonic improvement",
        claim="Sequential updates with exact advantages never lower J, in any order of the turns (Theorem 1).",
        problems=(
            f"{scale.problems} random bandits ({scale.few} for gradient steps): 2 contexts, 3 turns, 3 actions; "
            "reverse, natural and random order, 6 iterations each"
        ),
        checks=[
            check(clipped, scale.problems),
            check(unclipped, scale.problems),
            *(check(setup, scale.few) for setup in by_gradient),
            check(without_m, scale.problems, carry=False),
        ],
    )


def global_optimality(scale: Scale) -> Claim:
    def check(setup: Setup, order: Order, *, iterations: int, problems: int, within: float) -> Check:
        """Measure the distance to J* at the end, and the iterations until it is at most `within`."""
        gaps: list[float] = []
        needed: list[int] = []
        case: dict[str, Any] | None = None
        for number in range(problems):
            generator = scale.generator("optimality", number)
            problem = random_bandit(generator)
            engine = ExactEngine(problem, setup.policy(problem, generator), setup.rule)
            best = problem.best_return()
            algorithm = exact_seeupo(order, setup.rule, steps=setup.steps)
            returns = returns_over_iterations(
                engine, algorithm, iterations, generator=generator, stop_at=best - within / 2
            )
            if best - returns[-1] > max([within, *gaps]):
                case = {
                    "problem": number,
                    "J by iteration": rounded(returns[:12]),
                    "J at the end": returns[-1],
                    "J*": best,
                }
            gaps.append(best - returns[-1])
            needed.append(len(returns) - 1)
        figures = {
            "solved": sum(gap <= within for gap in gaps),
            "problems": problems,
            "largest_gap": max(gaps),
            "mean_gap": sum(gaps) / problems,
            "mean_iterations": sum(needed) / problems,
        }
        setting = f"{order} order, {setup.label} (to within {within:g})"
        return Check(setting, max(gaps) <= within, figures, setup.scope, counterexample=case)

    one_sweep = Setup("one sweep of the unclipped maximizer from full support", random_table, Maximizer())
    until_converged = Setup("clipped maximizer until convergence", random_table, CLIPPED_MAXIMIZER)
    checks = []
    for order in ORDERS:
        scope = Scope.CLAIM if order == "reverse" else Scope.COMPARISON
        sweep, converged = replace(one_sweep, scope=scope), replace(until_converged, scope=scope)
        checks.append(check(sweep, order, iterations=1, problems=scale.problems, within=1e-6))
        checks.append(check(converged, order, iterations=200, problems=scale.problems, within=1e-6))
    by_gradient = [
        Setup("trust region (KL 0.02), separate parameters", random_table, TrustRegion(0.02)),
        Setup("4 gradient steps (lr 2), shared network", random_network, GradientAscent(2.0), 4),
    ]
    checks += [check(setup, "reverse", iterations=40, problems=scale.few, within=1e-2) for setup in by_gradient]

    chains, curves = deceptive_checks()
    return Claim(
        id=2,
        title="Global optimality",
        claim="In reverse order, SeeUPO converges to the best joint policy, J* (Theorem 2).",
        problems=(
            f"{scale.problems} random bandits ({scale.few} for gradient steps): 2 contexts, 3 turns, 3 actions; "
            "two-turn deceptive chains"
        ),
        checks=[*checks, *chains],
        curves=curves,
        qualification=(
            "Soft policies: if every history keeps a positive probability, as the proof assumes without saying so, J "
            "reaches the best J of such policies."
        ),
    )


def deceptive_checks() -> tuple[list[Check], dict[str, list[float]]]:
    """Run reverse order on chains whose first turn gives up "go" before the second turn has learned to succeed."""
    checks, curves = [], {}
    easy, hard = ("safe 0.3 against 0.5 x 0.1", 0.5, 0.1), ("safe 0.3 against 0.1 x 0.02", 0.1, 0.02)
    free, near = ("maximizer", Maximizer()), ("maximizer within 0.05", Maximizer(radius=0.05))
    soft = ("maximizer within 0.05, every probability at least 0.01", Maximizer(radius=0.05, floor=0.01))
    for (name, go, success), rules in [(easy, [free, near]), (hard, [free, near, soft])]:
        for setting, rule in rules:
            problem = deceptive_chain(2)
            best = best_return(problem, rule)
            engine = ExactEngine(problem, chain_policy(problem, go=go, success=success), rule)
            returns = returns_over_iterations(engine, exact_seeupo("reverse", rule), 60, stop_at=best - 1e-6)
            why = "the first turn gives up a branch before the second has learned it; it is never sampled again"
            case = chain_case(engine, returns, best, go=go, success=success, why=why)
            solved = returns[-1] >= best - 1e-6
            figures = {"J_start": returns[0], "J_end": returns[-1], "J_best": best, "iterations": len(returns) - 1}
            scope = Scope.COMPARISON if rule.floor else Scope.CLAIM
            label = f"{setting}, {name}"
            counterexample = None if solved else case
            checks.append(Check(f"reverse order, {label}", solved, figures, scope, counterexample=counterexample))
            curves[label] = rounded(returns)
    return checks, curves


class RecordingEngine(ExactEngine):
    """Exact engine that records the policy before the first and after each turn's update."""

    def __init__(self, problem: Problem, policy: Policy, update: UpdateRule) -> None:
        super().__init__(problem, policy, update)
        self.history: list[Tensor] = [self.log_policy()]
        self.turns: list[int] = []

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: AgentId | None = None
    ) -> StepMetrics:
        metrics = super().step(turns, objective, normalizer=normalizer, agent=agent)
        assert isinstance(agent, int)  # problems have no roles
        if self.turns and self.turns[-1] == agent:
            self.history[-1] = self.log_policy()
        else:
            self.history.append(self.log_policy())
            self.turns.append(agent)
        return metrics


def identity_gaps(
    problem: Problem,
    policy: Policy,
    rule: UpdateRule,
    *,
    order: Order,
    generator: torch.Generator,
    ratio: Ratio = "product",
    steps: int = 1,
) -> Pairs:
    """Return E_k[(r_t - 1) M^{t+1}] as the algorithm computes it and the change of J, for each updated turn."""
    engine = RecordingEngine(problem, policy, rule)
    algorithm = SeeUPO(order=order, normalize="none", ratio=ratio, clip=clip_of(rule), epochs=steps)
    update = algorithm.update(engine, engine.enumerate(), generator=generator)
    pairs = []
    for number, turn in enumerate(engine.turns):
        expected = sum(
            trajectory.multiplicity * (credit.ratio - 1) * credit.carried_before
            for trajectory in update.trajectories
            for credit in credits_of(trajectory)
            if credit.turn == turn
        )
        before, after = engine.history[number], engine.history[number + 1]
        pairs.append((expected, float(problem.expected_return(after) - problem.expected_return(before))))
    return pairs


def credits_of(trajectory: Trajectory) -> Sequence[Any]:
    return trajectory.credit.turns if trajectory.credit else ()


def literal_local_advantage(problem: Problem, old: Tensor, new: Tensor, turn: int) -> float:
    """Return the left side of the paper's local-advantage equation, with HAML's definition taken literally.

    HAML's local advantage averages over the other agents' actions independently: here over the earlier turns, although
    turns t ... T have observed them.
    """
    actions, contexts = problem.num_tokens, len(problem.contexts.unique())
    old_turns, new_turns = problem.log_prob_of_turns(old), problem.log_prob_of_turns(new)
    mixed = problem.chance * (old_turns[:, :turn].sum(1) + new_turns[:, turn:].sum(1)).exp()

    def value_of_rest(first: int) -> Tensor:
        """Return Q(s_0, a^{first ... T}) [P], averaged over earlier turns drawn independently from the old policy."""
        shape = (contexts, actions**first, -1)
        prefix = old_turns[:, :first].sum(1).exp().view(shape)[:, :, :1]
        mean = (prefix * problem.returns.view(shape)).sum(1, keepdim=True)
        return mean.expand(shape[0], shape[1], -1).reshape(-1)

    return float(mixed @ (value_of_rest(turn) - value_of_rest(turn + 1)))


def clip_fractions(scale: Scale) -> dict[str, dict[str, float]]:
    """Return how often a clip of 0.2 binds after one turn's update of five-token actions, by ratio and step size."""
    fractions: dict[str, dict[str, float]] = {}
    for ratio in get_args(Ratio):
        fractions[ratio] = {}
        for rate in (1.0, 3.0, 10.0):
            generator = scale.generator("clip fraction")
            problem = random_bandit(generator, contexts=1, actions=32, turns=2, tokens_per_turn=5)
            engine = ExactEngine(problem, random_network(problem, generator), GradientAscent(rate))
            update = SeeUPO(ratio=ratio).update(engine, engine.enumerate())
            bound = [turn.values["clip_fraction"] for turn in update.metrics if turn.agent is not None]
            fractions[ratio][f"{rate:g}"] = sum(bound) / len(bound)
    return fractions


def identity_behind_m(scale: Scale) -> Claim:
    def errors_of(make_pairs: MakePairs, problems: int, orders: Sequence[Order] = ORDERS) -> dict[str, Any]:
        pairs = [pair for number in range(problems) for order in orders for pair in make_pairs(number, order)]
        errors = [abs(expected - gained) for expected, gained in pairs]
        size = sum(abs(gained) for _, gained in pairs) / len(pairs)
        return {
            "turns": len(pairs),
            "largest_error": max(errors),
            "mean_error": sum(errors) / len(errors),
            "mean_change_of_J": size,
            "relative_error": sum(errors) / len(errors) / size,
        }

    def separate(rule: UpdateRule, steps: int, make_problem: MakeProblem = random_bandit) -> MakePairs:
        def pairs(number: int, order: Order) -> Pairs:
            generator = scale.generator("identity", number)
            problem = make_problem(generator)
            policy = random_table(problem, generator)
            return identity_gaps(problem, policy, rule, order=order, generator=generator, steps=steps)

        return pairs

    def many_tokens(ratio: Ratio) -> MakePairs:
        def pairs(number: int, order: Order) -> Pairs:
            generator = scale.generator("identity, tokens", number)
            problem = random_bandit(generator, contexts=1, actions=8, turns=2, tokens_per_turn=3)
            policy = random_table(problem, generator)
            rule = GradientAscent(30.0)
            return identity_gaps(problem, policy, rule, order=order, generator=generator, ratio=ratio, steps=4)

        return pairs

    def shared(number: int, order: Order) -> Pairs:
        generator = scale.generator("identity, shared", number)
        problem = random_bandit(generator)
        policy = random_network(problem, generator)
        return identity_gaps(problem, policy, GradientAscent(2.0), order=order, generator=generator, steps=4)

    def literal(number: int, _: Order) -> Pairs:
        generator = scale.generator("identity", number)
        problem = random_bandit(generator)
        engine = RecordingEngine(problem, random_table(problem, generator), CLIPPED_MAXIMIZER)
        exact_seeupo("reverse", CLIPPED_MAXIMIZER).update(engine, engine.enumerate())
        before, after = engine.history, engine.history[1:]
        return [
            (
                literal_local_advantage(problem, engine.history[0], new, turn),
                float(problem.expected_return(new) - problem.expected_return(old)),
            )
            for old, new, turn in zip(before, after, engine.turns, strict=False)
            if turn is not None
        ]

    exact = separate(CLIPPED_MAXIMIZER, 1)
    normalized = many_tokens("length_normalized")
    ragged = separate(CLIPPED_MAXIMIZER, 1, random_tree)
    by_gradient = separate(GradientAscent(30.0), 4)
    results = [
        ("clipped maximizer, separate parameters", Scope.CLAIM, errors_of(exact, scale.problems)),
        ("the same, trajectories of different lengths", Scope.CLAIM, errors_of(ragged, scale.problems)),
        ("4 gradient steps, separate parameters", Scope.CLAIM, errors_of(by_gradient, scale.few)),
        ("3 tokens a turn, product ratios", Scope.CLAIM, errors_of(many_tokens("product"), scale.few)),
        ("3 tokens a turn, length-normalized ratios", Scope.PRACTICE, errors_of(normalized, scale.few)),
        ("4 gradient steps, shared network", Scope.PRACTICE, errors_of(shared, scale.few)),
        ("the paper's equation, read literally", Scope.PRACTICE, errors_of(literal, scale.few, ["reverse"])),
    ]
    return Claim(
        id=11,
        title="The identity behind M",
        claim=(
            "E_k[(r_t - 1) x (product of the ratios of the turns already updated) x A] is the change of J that the "
            "update of turn t makes (the quantity that M estimates)."
        ),
        problems=(
            f"{scale.problems} random bandits ({scale.few} for gradient steps), every turn of one sweep "
            "in reverse, natural and random order, by enumeration"
        ),
        checks=[Check(name, figures["largest_error"] < 1e-10, figures, scope) for name, scope, figures in results],
        curves={"clip_fraction": clip_fractions(scale)},
    )
