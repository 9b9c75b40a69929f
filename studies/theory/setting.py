"""Problems, policies and update loops on which the claims are measured."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import logprobs_by_key
from seeupo.algorithms.common.objective import SequenceObjective
from seeupo.config.option_types import Clip
from seeupo.protocols import Algorithm, Need
from seeupo.types import ON_POLICY, Behavior, Trajectory, TurnKey, Update, turns_of
from studies.exact import ExactEngine, Maximizer, NetworkPolicy, Problem, TablePolicy, TrustRegion
from studies.exact.policy import Policy
from studies.exact.problem import bandit, mdp, tree
from studies.exact.updates import UpdateRule
from studies.theory.verdict import Check, Scope

CLIP: Clip = (0.2, 0.2)
CLIPPED_MAXIMIZER = Maximizer(kinks=(0.8, 1.2))
FALL_TOLERANCE = 1e-9
"""Smallest decrease of J that counts as a fall; less is rounding."""

MakeProblem = Callable[[torch.Generator], Problem]
MakePolicy = Callable[[Problem, torch.Generator], Policy]


@dataclass(frozen=True)
class Setup:
    """Policy parametrization and update rule of a check, with the steps per pool and the scope."""

    label: str
    policy: MakePolicy
    rule: UpdateRule
    steps: int = 1
    scope: Scope = Scope.PRACTICE


@dataclass(frozen=True)
class Scale:
    """Size of the study.

    Attributes:
        seed: Random seed for all problems, policies and samples.
        problems: Number of random problems per check.
    """

    seed: int = 0
    problems: int = 20

    @property
    def few(self) -> int:
        """Number of problems for slow checks: a quarter of `problems`, at least 2."""
        return max(2, self.problems // 4)

    def generator(self, *labels: object) -> torch.Generator:
        """Return a generator seeded by the labels, so that no claim depends on the draws of another."""
        return torch.Generator().manual_seed(zlib.crc32(repr((self.seed, *labels)).encode()))


def random_bandit(
    generator: torch.Generator, *, contexts: int = 2, actions: int = 3, turns: int = 3, tokens_per_turn: int = 1
) -> Problem:
    """Return a bandit with uniform random rewards for every joint action."""
    rewards = torch.rand(contexts, *[actions] * turns, generator=generator, dtype=torch.float64)
    return bandit(rewards, tokens_per_turn=tokens_per_turn)


def random_mdp(generator: torch.Generator, *, states: int = 3, actions: int = 2, horizon: int = 4) -> Problem:
    """Return an MDP with random transitions and rewards that starts in state 0."""
    transitions = torch.rand(states, actions, states, generator=generator, dtype=torch.float64) ** 3
    rewards = torch.rand(states, actions, generator=generator, dtype=torch.float64)
    start = torch.eye(states, dtype=torch.float64)[0]
    return mdp(start, transitions / transitions.sum(2, keepdim=True), rewards, horizon=horizon)


def random_tree(generator: torch.Generator, *, contexts: int = 2, turns: int = 3) -> Problem:
    """Return a problem with two actions per turn, the first of which ends the trajectory with a random reward."""
    paths: list[tuple[int, Sequence[int], float]] = []
    for context in range(contexts):
        for length in range(1, turns + 1):
            for last in (0, 1) if length == turns else (0,):
                reward = float(torch.rand((), generator=generator, dtype=torch.float64))
                paths.append((context, [1] * (length - 1) + [last], reward))
    return tree(paths, num_tokens=2)


def deceptive_chain(turns: int, *, contexts: int = 1) -> Problem:
    """Return a chain in which a safe reward of 0.3 competes with a long path to a reward of 1.

    In turn 1, token 0 ends the trajectory with 0.3 and token 1 continues ("go"). After that, token 0 in any turn ends
    it with 0; token 1 in every turn earns 1. Contexts are copies of the same chain.
    """
    paths: list[tuple[int, Sequence[int], float]] = []
    for context in range(contexts):
        paths += [(context, [1] * right + [0], 0.3 if right == 0 else 0.0) for right in range(turns)]
        paths.append((context, [1] * turns, 1.0))
    return tree(paths, num_tokens=2)


def chain_policy(problem: Problem, *, go: float, success: float) -> TablePolicy:
    """Return a table for the chain with probability `go` in turn 1 and `success` for all later turns together."""
    right = success ** (1 / (problem.num_turns - 1))
    probs = torch.full((problem.num_nodes, 2), right, dtype=torch.float64)
    probs[problem.nodes[:, 0, 0], :] = go
    probs[:, 0] = 1 - probs[:, 1]
    return TablePolicy(probs.log())


def chain_case(
    engine: ExactEngine, returns: Sequence[float], best: float, *, go: float, success: float, why: str
) -> dict[str, Any]:
    """Return a run on a two-turn chain as a counterexample."""
    end = engine.log_policy().exp()
    return {
        "paths and rewards": {"safe": 0.3, "go, wrong": 0.0, "go, right": 1.0},
        "start": {"P(go)": go, "P(right | go)": success},
        "J by iteration": rounded(returns[:8]),
        "end": {"P(go)": float(end[0, 1]), "P(right | go)": float(end[1, 1]), "J": returns[-1], "J*": best},
        "why": why,
    }


def random_table(problem: Problem, generator: torch.Generator) -> TablePolicy:
    """Return a random table with separate parameters for every node."""
    return TablePolicy(torch.randn(problem.num_nodes, problem.num_tokens, generator=generator, dtype=torch.float64))


def per_turn_table(problem: Problem, generator: torch.Generator) -> TablePolicy:
    """Return a random table with one distribution per turn, shared by all contexts, histories and states."""
    rows = torch.zeros(problem.num_nodes, dtype=torch.long)
    for turn in range(problem.num_turns):
        rows[problem.nodes[problem.live[:, turn], turn, 0]] = turn
    logits = torch.randn(problem.num_turns, problem.num_tokens, generator=generator, dtype=torch.float64)
    return TablePolicy(logits, rows)


def random_network(
    problem: Problem, generator: torch.Generator, *, features: int = 4, hidden: int = 8
) -> NetworkPolicy:
    """Return a small network over fewer random features than nodes, so that updates of nodes interfere."""
    inputs = torch.randn(problem.num_nodes, features, generator=generator, dtype=torch.float64)
    return NetworkPolicy(inputs, problem.num_tokens, hidden=hidden, generator=generator)


def returns_over_iterations(
    engine: ExactEngine,
    algorithm: Algorithm,
    iterations: int,
    *,
    generator: torch.Generator | None = None,
    stop_at: float = float("inf"),
) -> list[float]:
    """Return J before the first and after each iteration on all paths.

    Stop early when J reaches `stop_at` or the policy no longer changes.
    """
    returns = [engine.expected_return()]
    for _ in range(iterations):
        before = engine.log_policy()
        if returns[-1] >= stop_at:
            break
        algorithm.update(engine, engine.enumerate(), generator=generator)
        returns.append(engine.expected_return())
        if total_variation(before, engine.log_policy()) < 1e-15:
            break
    return returns


@dataclass
class Falls:
    """Counts the iterations in which J falls and keeps the largest fall."""

    iterations: int = 0
    falls: int = 0
    largest: float = 0.0
    case: dict[str, Any] | None = None

    def count(self, returns: Sequence[float], **case: object) -> None:
        for iteration, (before, after) in enumerate(pairwise(returns)):
            self.iterations += 1
            self.falls += before - after > FALL_TOLERANCE
            if before - after > max(self.largest, FALL_TOLERANCE):
                self.largest = before - after
                self.case = {**case, "iteration": iteration, "J_before": before, "J_after": after}

    @property
    def figures(self) -> dict[str, Any]:
        return {"iterations": self.iterations, "falls": self.falls, "largest_fall": self.largest}

    def check(self, setting: str, scope: Scope = Scope.CLAIM, **more: float) -> Check:
        """Return the check that J never falls; `more` is added to its figures."""
        return Check(setting, self.falls == 0, self.figures | more, scope, counterexample=self.case)


@dataclass(frozen=True)
class Simultaneous:
    """Update of the backbone algorithms: all turns at once, on SeeUPO's clipped objective.

    Attributes:
        weights: Function from the engine and its trajectories to a weight per turn; turns without a weight are left
            out.
        clip: (low, high) around 1; None for no clip.
        steps: Steps of the engine per update.
    """

    weights: Callable[[ExactEngine, Sequence[Trajectory]], Mapping[TurnKey, float]]
    clip: Clip | None = CLIP
    steps: int = 1
    needs: frozenset[Need] = frozenset()

    def update(
        self,
        engine: Any,
        trajectories: Sequence[Trajectory],
        *,
        generator: torch.Generator | None = None,
        behavior: Behavior = ON_POLICY,
    ) -> Update:
        weights = self.weights(engine, trajectories)
        turns = [turn for turn in turns_of(trajectories) if turn.key in weights]
        counts = {trajectory.id: trajectory.multiplicity for trajectory in trajectories}
        objective = SequenceObjective(
            old=logprobs_by_key(engine, turns),
            advantages=weights,
            multiplicities=counts,
            ratio="product",
            clip=self.clip,
        )
        for _ in range(self.steps):
            engine.step(turns, objective, normalizer=sum(counts.values()))
        return Update((), tuple(trajectories))


def flat_gradient(value: Tensor, policy: Policy) -> Tensor:
    """Return the gradient of a scalar with respect to all of the policy's parameters as one vector."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(policy.parameters().values()))])


def flat_parameters(policy: Policy) -> Tensor:
    """Return a copy of all of the policy's parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters().values()])


def total_variation(first: Tensor, second: Tensor) -> float:
    """Return the largest total variation distance between two policies [nodes, V] over all nodes."""
    return float((first.exp() - second.exp()).abs().sum(1).max() / 2)


def clip_of(rule: UpdateRule) -> Clip | None:
    """Return the clip that goes with an update rule: none for a trust region and a maximizer without kinks."""
    unclipped = isinstance(rule, TrustRegion) or (isinstance(rule, Maximizer) and not rule.kinks)
    return None if unclipped else CLIP


def best_return(problem: Problem, rule: UpdateRule) -> float:
    """Return J* among the policies that the rule can reach: those above its floor, if it has one."""
    return problem.best_return(rule.floor if isinstance(rule, Maximizer) else 0.0)


def rounded(values: Sequence[float], digits: int = 6) -> list[float]:
    return [round(value, digits) for value in values]
