"""Claims about the backbone algorithms: GRAE with REINFORCE, and clipped updates with GAE or GRAE advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor

from seeupo.core.advantages import Baseline, gae
from seeupo.core.ratios import clipped_objective
from seeupo.types import Trajectory, TurnKey
from studies.exact import ExactEngine, GradientAscent, Problem, TablePolicy
from studies.exact.problem import bandit
from studies.theory.estimators import (
    GROUP_SIZES,
    LEAVE_ONE_OUT,
    SHOWN_GROUP,
    expected_group_advantages,
    factor_between,
    factor_checks,
)
from studies.theory.mechanism import trajectory_advantages
from studies.theory.setting import (
    CLIP,
    CLIPPED_MAXIMIZER,
    Falls,
    MakeProblem,
    Scale,
    Setup,
    Simultaneous,
    best_return,
    chain_case,
    chain_policy,
    deceptive_chain,
    flat_gradient,
    per_turn_table,
    random_bandit,
    random_mdp,
    random_network,
    random_table,
    returns_over_iterations,
)
from studies.theory.verdict import Check, Claim, Scope

Weights = Callable[[ExactEngine, Sequence[Trajectory]], dict[TurnKey, float]]
"""Function from an engine and its trajectories to the advantage of each turn."""


def true_advantages(engine: ExactEngine, trajectories: Sequence[Trajectory]) -> dict[TurnKey, float]:
    """Return A(s_t, a_t) of the current policy: GAE with a perfect critic, averaged over future events."""
    value, action_value = engine.problem.value_at_nodes(engine.log_policy(), engine.problem.discounted_to_go(1.0))
    advantage = action_value - value[:, None]
    return {
        turn.key: float(advantage[turn.prompt_ids[0], turn.action_ids[0]])
        for trajectory in trajectories
        for turn in trajectory.turns
    }


def gae_advantages(engine: ExactEngine, trajectories: Sequence[Trajectory]) -> dict[TurnKey, float]:
    """Return GAE (lambda 0.95) with a perfect critic, computed for each path."""
    problem = engine.problem
    value, _ = problem.value_at_nodes(engine.log_policy(), problem.discounted_to_go(1.0))
    values = torch.where(problem.live, value[problem.nodes[:, :, 0].clamp(min=0)], 0.0)
    estimates, _ = gae(problem.rewards, values, problem.live, gamma=1.0, lam=0.95)
    return {
        turn.key: float(estimates[int(trajectory.id), turn.index])
        for trajectory in trajectories
        for turn in trajectory.turns
    }


def falls_and_gaps(
    scale: Scale, setup: Setup, weights: Weights, make_problem: MakeProblem, *, problems: int, iterations: int
) -> tuple[Falls, dict[str, float]]:
    """Count falls of J over random problems when all turns are updated at once, and measure the gap to J*."""
    falls, gaps = Falls(), []
    algorithm = Simultaneous(weights, steps=setup.steps)
    for number in range(problems):
        generator = scale.generator("backbones", number)
        problem = make_problem(generator)
        engine = ExactEngine(problem, setup.policy(problem, generator), setup.rule)
        returns = returns_over_iterations(engine, algorithm, iterations)
        falls.count(returns, problem=number)
        gaps.append(best_return(problem, setup.rule) - returns[-1])
    return falls, {"mean_gap_to_J*": sum(gaps) / problems, "largest_gap_to_J*": max(gaps)}


def improvement_checks(
    scale: Scale, setup: Setup, weights: Weights, make_problem: MakeProblem, *, problems: int, iterations: int
) -> list[Check]:
    """Check that J never falls and, within the claim's scope, that it reaches J*."""
    falls, gaps = falls_and_gaps(scale, setup, weights, make_problem, problems=problems, iterations=iterations)
    never = falls.check(f"J never falls: {setup.label}", setup.scope, **gaps)
    if setup.scope is not Scope.CLAIM:
        return [never]
    return [never, Check(f"J reaches J*: {setup.label}", gaps["largest_gap_to_J*"] < 1e-6, gaps)]


def grae_reinforce(scale: Scale) -> Claim:
    # One unclipped step from ratio 1 has the gradient of REINFORCE.
    reinforce = Simultaneous(trajectory_advantages, clip=None)
    errors = []
    for number in range(scale.problems):
        generator = scale.generator("reinforce", number)
        problem = random_bandit(generator)
        policy = random_table(problem, generator)
        true = flat_gradient(problem.expected_return(policy.log_probs()), policy)
        start = policy.logits.detach().clone()
        engine = ExactEngine(problem, policy, GradientAscent(1.0))
        reinforce.update(engine, engine.enumerate())
        errors.append(float(((policy.logits.detach() - start).flatten() - true).norm() / true.norm()))
    checks = [Check("the expected gradient is that of J", max(errors) < 1e-10, {"largest_relative_error": max(errors)})]

    setups = [
        Setup("separate parameters, exact gradient, lr 1", random_table, GradientAscent(1.0), scope=Scope.CLAIM),
        Setup("separate parameters, exact gradient, lr 1000", random_table, GradientAscent(1000.0)),
        Setup("shared network, exact gradient, lr 0.3", random_network, GradientAscent(0.3)),
        Setup("shared network, exact gradient, lr 30", random_network, GradientAscent(30.0)),
        Setup("separate parameters, sampled groups of 8, lr 10", random_table, GradientAscent(10.0)),
    ]
    for setup in setups:
        falls = Falls()
        for number in range(scale.few):
            generator = scale.generator("reinforce", number)
            problem = random_bandit(generator)
            engine = ExactEngine(problem, setup.policy(problem, generator), setup.rule)
            returns = [engine.expected_return()]
            for _ in range(40):
                sampled = "sampled" in setup.label
                reinforce.update(engine, engine.sample(8, generator) if sampled else engine.enumerate())
                returns.append(engine.expected_return())
            falls.count(returns, problem=number)
        checks.append(falls.check(f"J never falls: {setup.label}", setup.scope))

    # The expected gradient is that of J (see above), so the long run follows it directly.
    slopes, gaps = [], []
    for number in range(scale.few):
        generator = scale.generator("reinforce", number)
        problem = random_bandit(generator)
        policy = random_table(problem, generator)
        for _ in range(3000):
            (gradient,) = torch.autograd.grad(problem.expected_return(policy.log_probs()), policy.logits)
            policy.logits.data += 100.0 * gradient
        slopes.append(float(gradient.norm()))
        gaps.append(problem.best_return() - float(problem.expected_return(policy.log_probs().detach())))
    figures = {"largest_gradient": max(slopes), "mean_gap_to_J*": sum(gaps) / len(gaps), "largest_gap_to_J*": max(gaps)}
    setting = "separate parameters, 3000 exact steps, lr 100"
    checks.append(Check(f"J converges: {setting}", max(slopes) < 1e-4, figures))
    # Softmax policies have plateaus: where J* was not reached, more steps might still reach it.
    reached = max(gaps) < 1e-2
    checks.append(Check(f"its limit is J*: {setting}", reached, figures, undecided=not reached))
    return Claim(
        id=5,
        title="GRAE with REINFORCE",
        claim="At gamma = 1 GRAE-REINFORCE has the gradient of J, improves monotonically and converges (Theorem 5).",
        problems=(
            f"{scale.problems} random bandits for the gradient, {scale.few} for the runs of 40 iterations: "
            "2 contexts, 3 turns, 3 actions"
        ),
        checks=checks,
    )


def gae_clipped(scale: Scale) -> Claim:
    maximizer = Setup("maximizer, separate parameters", random_table, CLIPPED_MAXIMIZER, scope=Scope.CLAIM)
    of_paths = Setup("maximizer, separate parameters, GAE of each path", random_table, CLIPPED_MAXIMIZER)
    by_gradient = [
        Setup("4 gradient steps (lr 10), separate parameters", random_table, GradientAscent(10.0), 4),
        Setup("4 gradient steps (lr 1), shared network", random_network, GradientAscent(1.0), 4),
        Setup("4 gradient steps (lr 10), shared network", random_network, GradientAscent(10.0), 4),
    ]
    checks = []
    for setup in [maximizer, of_paths, *by_gradient]:
        weights = gae_advantages if setup is of_paths else true_advantages
        problems, iterations = (scale.problems, 20) if setup is maximizer else (scale.few, 20)
        checks += improvement_checks(scale, setup, weights, small_mdp, problems=problems, iterations=iterations)

    soft_maximizer = replace(CLIPPED_MAXIMIZER, floor=0.01)
    soft = Setup("maximizer, separate parameters, every probability at least 0.01", random_table, soft_maximizer)
    _, gaps = falls_and_gaps(scale, soft, true_advantages, small_mdp, problems=scale.few, iterations=100)
    checks.append(Check(f"J reaches J*: {soft.label}", gaps["largest_gap_to_J*"] < 1e-6, gaps, Scope.COMPARISON))

    # The safe action is better as long as the second turn is mostly wrong; "go" is given up before that has changed.
    problem = deceptive_chain(2)
    start = {"go": 0.1, "success": 0.2}
    for setup in (maximizer, soft):
        best = best_return(problem, setup.rule)
        engine = ExactEngine(problem, chain_policy(problem, **start), setup.rule)
        returns = returns_over_iterations(engine, Simultaneous(true_advantages), 60)
        solved = returns[-1] > best - 1e-6
        why = "an action of probability 0 is never sampled again, so a change of its advantage goes unnoticed"
        case = chain_case(engine, returns, best, **start, why=why)
        figures = {"J_end": returns[-1], "J_best": best}
        setting = f"J reaches J*: {setup.label}, safe 0.3 against 0.1 x 0.2"
        scope = Scope.CLAIM if setup is maximizer else Scope.COMPARISON
        checks.append(Check(setting, solved, figures, scope, counterexample=None if solved else case))
    return Claim(
        id=6,
        title="GAE with clipping",
        claim="With a perfect critic, clipped updates improve monotonically and converge to J* (Theorem 6).",
        problems=(
            f"{scale.problems} random MDPs ({scale.few} for gradient steps): 3 states, 2 actions, horizon 3, "
            "20 iterations; a two-turn deceptive chain"
        ),
        checks=checks,
        qualification=(
            "No deterministic policies in the set: a softmax over a compact parameter space keeps every probability "
            "above some floor, so that no action is lost, and J reaches the best J of such policies."
        ),
    )


def small_mdp(generator: torch.Generator) -> Problem:
    return random_mdp(generator, horizon=3)


def paper_example() -> tuple[dict[str, Any], bool]:
    """Run the two-action example of the paper's proof, with the only policy that is consistent with its numbers.

    V(s_1) - V(s_0) = 10. A(good) = 2 and A(bad) = -5 average to 0 only for pi = (5/7, 2/7). Return the case, and
    whether J falls.
    """
    old = torch.tensor([5 / 7, 2 / 7], dtype=torch.float64)
    # One turn whose rewards are the GRAE advantages of the example: good 2 + 10, bad -5 + 10.
    problem = bandit(torch.tensor([[12.0, 5.0]], dtype=torch.float64))
    engine = ExactEngine(problem, TablePolicy(old.log()[None]), CLIPPED_MAXIMIZER)
    biased = Simultaneous(lambda _, trajectories: {(t.id, 0): t.reward for t in trajectories})
    biased.update(engine, engine.enumerate())
    new = engine.log_policy()[0].exp()
    change = float((new - old) @ torch.tensor([2.0, -5.0], dtype=torch.float64))
    case = {
        "old policy (good, bad)": old.tolist(),
        "GRAE advantages (good, bad)": [12.0, 5.0],
        "maximizer of the clipped objective (good, bad)": new.tolist(),
        "ratio of the bad action, 1.2 according to the paper": float(new[1] / old[1]),
        "change of J": change,
        "why": "probabilities sum to 1: what the good action gains, the bad one loses",
    }
    return case, change < 0


def grae_drift(problem: Problem, log_policy: Tensor, candidate: Tensor) -> Tensor:
    """Return the paper's drift of the clipped update with GRAE's expected advantages at each reachable state."""
    value, action_value = problem.value_at_nodes(log_policy)
    advantage = action_value - value[:, None]
    biased = action_value - problem.expected_return(log_policy)
    log_ratio = (candidate - log_policy).flatten()
    objective = clipped_objective(log_ratio, biased.flatten(), clip=CLIP).view_as(biased)
    drift = (candidate.exp() * advantage - log_policy.exp() * objective).sum(1)
    return drift[problem.reach(log_policy) > 0]


def grae_clipped_mdp(scale: Scale) -> Claim:
    at_origin, nearby = [], []
    for number in range(scale.problems):
        generator = scale.generator("drift", number)
        problem = small_mdp(generator)
        log_policy = random_table(problem, generator).log_probs().detach()
        noise = 0.1 * torch.randn(log_policy.shape, generator=generator, dtype=torch.float64)
        at_origin += grae_drift(problem, log_policy, log_policy).tolist()
        nearby += grae_drift(problem, log_policy, (log_policy + noise).log_softmax(1)).tolist()
    figures = {
        "states": len(at_origin),
        "not_zero": sum(abs(drift) > 1e-9 for drift in at_origin),
        "negative": sum(drift < -1e-9 for drift in at_origin),
    }
    checks = [
        Check("the drift is not 0 at the old policy", figures["not_zero"] > 0, figures),
        Check("the drift is negative somewhere", min(nearby) < -1e-9, {"lowest": min(nearby)}),
    ]

    example, degrades = paper_example()
    policies = 2 * scale.problems
    runs: list[Check] = []
    curves: dict[str, Any] = {}
    falls_because_of_grae = 0
    for setup in [
        Setup("maximizer, separate parameters", random_table, CLIPPED_MAXIMIZER, scope=Scope.CLAIM),
        Setup("8 gradient steps (lr 1), separate parameters", random_table, GradientAscent(1.0), 8),
        Setup("8 gradient steps (lr 100), separate parameters", random_table, GradientAscent(100.0), 8),
        Setup("maximizer, one distribution per turn", per_turn_table, CLIPPED_MAXIMIZER),
        Setup("8 gradient steps (lr 30), one distribution per turn", per_turn_table, GradientAscent(30.0), 8),
        Setup("8 gradient steps (lr 1), shared network", random_network, GradientAscent(1.0), 8),
        Setup("8 gradient steps (lr 10), shared network", random_network, GradientAscent(10.0), 8),
    ]:
        grae, true = (
            falls_and_gaps(scale, setup, weights, small_mdp, problems=policies, iterations=1)[0]
            for weights in (trajectory_advantages, true_advantages)
        )
        if true.falls == 0:
            falls_because_of_grae += grae.falls
        of_both = grae.figures | {"falls_with_true_advantages": true.falls}
        runs.append(Check(f"J falls at times: {setup.label}", grae.falls > 0, of_both, setup.scope))
        curves[setup.label] = {"GRAE": grae.falls / policies, "true advantages": true.falls / policies}
    # Part 3 of the theorem fails in its own setting, the argmax over all policies. Ratios average to 1 in each state:
    # a shift that is the same for all actions cancels, and the mean advantage of no state can fall.
    lowest = min(lowest_gain_of_a_state(scale, number) for number in range(policies))
    checks += [
        Check(
            "J falls in the paper's two-action example: maximizer",
            degrades,
            {"change_of_J": example["change of J"]},
            counterexample=None if degrades else example,
        ),
        Check(
            "the mean advantage falls in no state: maximizer, separate parameters",
            lowest > -1e-12,
            {"lowest_mean_advantage": lowest},
            Scope.COMPARISON,
        ),
        # That none was found among some policies does not mean that there is none.
        Check(
            "J falls with GRAE under an update that never lowers it with true advantages",
            falls_because_of_grae > 0,
            {"such_falls": falls_because_of_grae},
            Scope.PRACTICE,
            undecided=falls_because_of_grae == 0,
        ),
        *runs,
    ]
    return Claim(
        id=7,
        title="GRAE with clipping in an MDP",
        claim="GRAE's bias spoils the drift of clipped updates, and there are policies from which J falls (Theorem 7).",
        problems=(
            f"{scale.problems} random MDPs for the drift, one update from each of {policies} random policies: "
            "3 states, 2 actions, horizon 3; the paper's example"
        ),
        checks=checks,
        curves=curves,
        qualification=(
            "Parts 1 and 2, about the drift, hold. Part 3 fails for the argmax over all policies, which the theorem "
            "speaks of; it holds for gradient steps on parameters that states share."
        ),
    )


def lowest_gain_of_a_state(scale: Scale, number: int) -> float:
    """Return the smallest E_new[A_old(s, a)] of any state after one clipped maximizer update with GRAE."""
    generator = scale.generator("backbones", number)
    problem = small_mdp(generator)
    engine = ExactEngine(problem, random_table(problem, generator), CLIPPED_MAXIMIZER)
    old = engine.log_policy()
    value, action_value = problem.value_at_nodes(old, problem.discounted_to_go(1.0))
    Simultaneous(trajectory_advantages).update(engine, engine.enumerate())
    gains = (engine.log_policy().exp() * (action_value - value[:, None])).sum(1)
    return float(gains[problem.reach(old) > 0].min())


def grae_clipped_bandit(scale: Scale) -> Claim:
    def one_turn(generator: torch.Generator) -> Problem:
        return random_bandit(generator, contexts=3, actions=4, turns=1)

    maximizer = Setup("maximizer, separate parameters", random_table, CLIPPED_MAXIMIZER, scope=Scope.CLAIM)
    by_gradient = [
        Setup("8 gradient steps (lr 10), separate parameters", random_table, GradientAscent(10.0), 8),
        Setup("8 gradient steps (lr 1), shared network", random_network, GradientAscent(1.0), 8),
        Setup("8 gradient steps (lr 10), shared network", random_network, GradientAscent(10.0), 8),
    ]
    checks = improvement_checks(
        scale, maximizer, trajectory_advantages, one_turn, problems=scale.problems, iterations=40
    )
    for setup in by_gradient:
        checks += improvement_checks(scale, setup, trajectory_advantages, one_turn, problems=scale.few, iterations=10)
    return Claim(
        id=8,
        title="GRAE with clipping in a bandit",
        claim=(
            "In a contextual bandit (one turn) GRAE is unbiased, and clipped updates with it improve monotonically up "
            "to J* (Theorem 8)."
        ),
        problems=(
            f"{scale.problems} random bandits ({scale.few} for gradient steps): 3 contexts, 1 turn, 4 actions; "
            "all possible groups in as many bandits with one context"
        ),
        checks=[*checks, *bandit_bias_checks(scale)],
        qualification=f"{LEAVE_ONE_OUT} The factor is the same for all actions: it rescales the step.",
    )


def bandit_bias_checks(scale: Scale) -> list[Check]:
    """Compare E[A_GRAE | s, a] with A(s, a) in one-turn bandits, for an infinite group and for groups of G."""
    errors: list[float] = []
    factors: dict[tuple[Baseline, int], list[float]] = {}
    for number in range(scale.problems):
        generator = scale.generator("bandit bias", number)
        problem = random_bandit(generator, contexts=1, actions=4, turns=1)
        engine = ExactEngine(problem, random_table(problem, generator), CLIPPED_MAXIMIZER)
        advantages = problem.returns - engine.expected_return()
        infinite = trajectory_advantages(engine, engine.enumerate())
        errors.append(float((torch.tensor(list(infinite.values()), dtype=torch.float64) - advantages).abs().max()))
        for baseline, size in product(get_args(Baseline), GROUP_SIZES):
            expected = expected_group_advantages(problem, size, baseline, engine.log_policy())
            factors.setdefault((baseline, size), []).append(factor_between(expected, advantages))
            if (baseline, size) == SHOWN_GROUP:
                case = {
                    "rewards of the four actions": problem.returns.tolist(),
                    "their probabilities": engine.log_policy()[0].exp().tolist(),
                    "A": advantages.tolist(),
                    "E[A_GRAE | a] with G = 2": expected.tolist(),
                }
    infinite_group = Check("E[A_GRAE | s, a] = A: infinite group", max(errors) < 1e-10, {"largest_error": max(errors)})
    return [infinite_group, *factor_checks("E[A_GRAE | s, a] = A", factors, case)]
