"""Claims about the backbone algorithms: GRAE with REINFORCE, and clipped updates with GAE or GRAE advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from seeupo.core import clipped_objective, gae
from seeupo.engines.exact import ExactEngine, GradientAscent, Problem, TablePolicy
from seeupo.engines.exact.problem import bandit
from seeupo.studies.theory.mechanism import trajectory_advantages
from seeupo.studies.theory.setting import (
    CLIP,
    CLIPPED_MAXIMISER,
    Falls,
    MakeProblem,
    Scale,
    Simultaneous,
    Trial,
    blind_table,
    chain_policy,
    deceptive_chain,
    flat_gradient,
    random_bandit,
    random_mdp,
    random_network,
    random_table,
    returns_over_iterations,
    rounded,
)
from seeupo.studies.theory.verdict import Check, Claim, Scope
from seeupo.types import Trajectory, TurnKey

Weights = Callable[[ExactEngine, Sequence[Trajectory]], dict[TurnKey, float]]
"""The advantage of each turn, from the engine's policy and its trajectories."""


def true_advantages(engine: ExactEngine, trajectories: Sequence[Trajectory]) -> dict[TurnKey, float]:
    """A(s_t, a_t) of the current policy: GAE with a perfect critic, averaged over what happens afterwards."""
    value, action_value = engine.problem.value_at_nodes(engine.log_policy(), engine.problem.discounted_to_go(1.0))
    advantage = action_value - value[:, None]
    return {
        turn.key: float(advantage[turn.prompt_ids[0], turn.action_ids[0]])
        for trajectory in trajectories
        for turn in trajectory.turns
    }


def gae_advantages(engine: ExactEngine, trajectories: Sequence[Trajectory]) -> dict[TurnKey, float]:
    """GAE (lambda 0.95) with a perfect critic, for each path on its own."""
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
    scale: Scale, trial: Trial, weights: Weights, make_problem: MakeProblem, *, problems: int, iterations: int
) -> tuple[Falls, dict[str, float]]:
    """How often J falls over random problems when all turns are updated at once, and the distance left to J*."""
    counted, gaps = Falls(), []
    algorithm = Simultaneous(weights, steps=trial.steps)
    for number in range(problems):
        generator = scale.generator("backbones", number)
        problem = make_problem(generator)
        engine = ExactEngine(problem, trial.policy(problem, generator), trial.rule)
        returns = returns_over_iterations(engine, algorithm, iterations)
        counted.watch(returns, problem=number)
        gaps.append(problem.best_return() - returns[-1])
    return counted, {"mean_gap_to_J*": sum(gaps) / problems, "largest_gap_to_J*": max(gaps)}


def improvement_checks(
    scale: Scale, trial: Trial, weights: Weights, make_problem: MakeProblem, *, problems: int, iterations: int
) -> list[Check]:
    """That J never falls and, where the claim covers it, that J* is reached."""
    counted, gaps = falls_and_gaps(scale, trial, weights, make_problem, problems=problems, iterations=iterations)
    figures = counted.figures | gaps
    never = Check(f"J never falls: {trial.setting}", counted.falls == 0, figures, trial.scope, False, counted.case)
    if trial.scope is not Scope.CLAIM:
        return [never]
    return [never, Check(f"J reaches J*: {trial.setting}", gaps["largest_gap_to_J*"] < 1e-6, gaps)]


def grae_reinforce(scale: Scale) -> Claim:
    # One unclipped step from ratio 1 has REINFORCE's gradient.
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

    trials = [
        Trial("separate parameters, exact gradient, lr 1", random_table, GradientAscent(1.0), scope=Scope.CLAIM),
        Trial("separate parameters, exact gradient, lr 1000", random_table, GradientAscent(1000.0)),
        Trial("shared network, exact gradient, lr 0.3", random_network, GradientAscent(0.3)),
        Trial("shared network, exact gradient, lr 30", random_network, GradientAscent(30.0)),
        Trial("separate parameters, sampled groups of 8, lr 10", random_table, GradientAscent(10.0)),
    ]
    for trial in trials:
        counted = Falls()
        for number in range(scale.few):
            generator = scale.generator("reinforce", number)
            problem = random_bandit(generator)
            engine = ExactEngine(problem, trial.policy(problem, generator), trial.rule)
            returns = [engine.expected_return()]
            for _ in range(40):
                sampled = "sampled" in trial.setting
                reinforce.update(engine, engine.sample(8, generator) if sampled else engine.enumerate())
                returns.append(engine.expected_return())
            counted.watch(returns, problem=number)
        setting = f"J never falls: {trial.setting}"
        checks.append(Check(setting, counted.falls == 0, counted.figures, trial.scope, False, counted.case))

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
    # A plateau is no limit: where J* was not reached, more steps might still reach it.
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
    maximiser = Trial("maximiser, separate parameters", random_table, CLIPPED_MAXIMISER, scope=Scope.CLAIM)
    of_paths = Trial("maximiser, separate parameters, GAE of each path", random_table, CLIPPED_MAXIMISER)
    by_gradient = [
        Trial("4 gradient steps (lr 10), separate parameters", random_table, GradientAscent(10.0), 4),
        Trial("4 gradient steps (lr 1), shared network", random_network, GradientAscent(1.0), 4),
        Trial("4 gradient steps (lr 10), shared network", random_network, GradientAscent(10.0), 4),
    ]
    checks = []
    for trial in [maximiser, of_paths, *by_gradient]:
        weights = gae_advantages if trial is of_paths else true_advantages
        problems, iterations = (scale.problems, 20) if trial is maximiser else (scale.few, 20)
        checks += improvement_checks(scale, trial, weights, small_mdp, problems=problems, iterations=iterations)

    # Safe is better as long as the second turn is mostly wrong; going on is given up before that has changed.
    problem = deceptive_chain(2)
    start = {"go": 0.1, "success": 0.2}
    engine = ExactEngine(problem, chain_policy(problem, **start), CLIPPED_MAXIMISER)
    returns = returns_over_iterations(engine, Simultaneous(true_advantages), 60)
    solved = returns[-1] > 1 - 1e-6
    end = engine.log_policy().exp()
    case = {
        "paths and rewards": {"safe": 0.3, "go, wrong": 0.0, "go, right": 1.0},
        "start": {"P(go)": start["go"], "P(right | go)": start["success"]},
        "J by iteration": rounded(returns),
        "end": {"P(go)": float(end[0, 1]), "P(right | go)": float(end[1, 1]), "J": returns[-1], "J*": 1.0},
        "why": "an action of probability 0 is never sampled again, so its advantage is never seen to have changed",
    }
    figures = {"J_end": returns[-1], "J_best": 1.0}
    setting = "J reaches J*: maximiser, separate parameters, safe 0.3 against 0.1 x 0.2"
    checks.append(Check(setting, solved, figures, counterexample=None if solved else case))
    return Claim(
        id=6,
        title="GAE with clipping",
        claim="With a perfect critic, clipped updates improve monotonically and converge to J* (Theorem 6).",
        problems=(
            f"{scale.problems} random MDPs ({scale.few} for gradient steps): 3 states, 2 actions, horizon 3, "
            "20 iterations; a two-turn deceptive chain"
        ),
        checks=checks,
    )


def small_mdp(generator: torch.Generator) -> Problem:
    return random_mdp(generator, horizon=3)


def paper_example() -> tuple[dict[str, Any], bool]:
    """The two-action example of the paper's proof, with the only policy that its numbers allow.

    V(s_1) = 10 more than V(s_0); A(good) = 2 and A(bad) = -5 average to 0 only for pi = (5/7, 2/7).
    """
    old = torch.tensor([5 / 7, 2 / 7], dtype=torch.float64)
    # One turn whose rewards are the GRAE advantages of the example: good 2 + 10, bad -5 + 10.
    problem = bandit(torch.tensor([[12.0, 5.0]], dtype=torch.float64))
    engine = ExactEngine(problem, TablePolicy(old.log()[None]), CLIPPED_MAXIMISER)
    biased = Simultaneous(lambda _, trajectories: {(t.id, 0): t.reward for t in trajectories})
    biased.update(engine, engine.enumerate())
    new = engine.log_policy()[0].exp()
    change = float((new - old) @ torch.tensor([2.0, -5.0], dtype=torch.float64))
    case = {
        "old policy (good, bad)": old.tolist(),
        "GRAE advantages (good, bad)": [12.0, 5.0],
        "maximiser of the clipped objective (good, bad)": new.tolist(),
        "ratio of the bad action, 1.2 according to the paper": float(new[1] / old[1]),
        "change of J": change,
        "why": "probabilities sum to 1: what the good action gains, the bad one loses",
    }
    return case, change < 0


def grae_drift(problem: Problem, log_policy: Tensor, candidate: Tensor) -> Tensor:
    """The paper's drift of the clipped update with GRAE's expected advantages, at each state that can be reached."""
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

    policies = 2 * scale.problems
    runs: list[Check] = []
    curves: dict[str, Any] = {}
    falls_because_of_grae = 0
    for trial in [
        Trial("maximiser, separate parameters", random_table, CLIPPED_MAXIMISER),
        Trial("8 gradient steps (lr 1), separate parameters", random_table, GradientAscent(1.0), 8),
        Trial("8 gradient steps (lr 100), separate parameters", random_table, GradientAscent(100.0), 8),
        Trial("maximiser, one distribution per turn", blind_table, CLIPPED_MAXIMISER),
        Trial("8 gradient steps (lr 30), one distribution per turn", blind_table, GradientAscent(30.0), 8),
        Trial("8 gradient steps (lr 1), shared network", random_network, GradientAscent(1.0), 8),
        Trial("8 gradient steps (lr 10), shared network", random_network, GradientAscent(10.0), 8),
    ]:
        grae, true = (
            falls_and_gaps(scale, trial, weights, small_mdp, problems=policies, iterations=1)[0]
            for weights in (trajectory_advantages, true_advantages)
        )
        if true.falls == 0:
            falls_because_of_grae += grae.falls
        of_both = grae.figures | {"falls_with_true_advantages": true.falls}
        runs.append(Check(f"J falls at times: {trial.setting}", grae.falls > 0, of_both, Scope.PRACTICE))
        curves[trial.setting] = {"GRAE": grae.falls / policies, "true advantages": true.falls / policies}
    found = {"such_falls": falls_because_of_grae}
    setting = "there are policies from which J falls with GRAE, by an update that never fails with true advantages"
    # That none was found among some policies does not mean that there is none.
    checks.append(Check(setting, falls_because_of_grae > 0, found, undecided=falls_because_of_grae == 0))
    example, degrades = paper_example()
    checks.append(
        Check(
            "the paper's two-action example is one, under the maximiser",
            degrades,
            {"change_of_J": example["change of J"]},
            Scope.PRACTICE,
            counterexample=None if degrades else example,
        )
    )
    checks += runs
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
    )


def grae_clipped_bandit(scale: Scale) -> Claim:
    def one_turn(generator: torch.Generator) -> Problem:
        return random_bandit(generator, contexts=3, actions=4, turns=1)

    maximiser = Trial("maximiser, separate parameters", random_table, CLIPPED_MAXIMISER, scope=Scope.CLAIM)
    by_gradient = [
        Trial("8 gradient steps (lr 10), separate parameters", random_table, GradientAscent(10.0), 8),
        Trial("8 gradient steps (lr 1), shared network", random_network, GradientAscent(1.0), 8),
        Trial("8 gradient steps (lr 10), shared network", random_network, GradientAscent(10.0), 8),
    ]
    checks = improvement_checks(
        scale, maximiser, trajectory_advantages, one_turn, problems=scale.problems, iterations=40
    )
    for trial in by_gradient:
        checks += improvement_checks(scale, trial, trajectory_advantages, one_turn, problems=scale.few, iterations=10)
    return Claim(
        id=8,
        title="GRAE with clipping in a bandit",
        claim="In a contextual bandit (one turn) clipped updates with GRAE improve monotonically up to J* (Theorem 8).",
        problems=f"{scale.problems} random bandits ({scale.few} for gradient steps): 3 contexts, 1 turn, 4 actions",
        checks=checks,
    )
