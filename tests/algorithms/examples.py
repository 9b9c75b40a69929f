"""Small problems, batches and engines shared by several test files."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seeupo.types import Trajectory, Turn
from studies.exact import ExactEngine, GradientAscent, NetworkPolicy, Problem, TablePolicy
from studies.exact.problem import bandit, tree
from studies.exact.updates import UpdateRule

F64 = torch.float64
GENTLE = GradientAscent(1.0)


def ragged_problem(seed: int = 0) -> Problem:
    """Two contexts; trajectories of one, two and three turns."""
    rewards = torch.rand(2, 4, generator=torch.Generator().manual_seed(seed), dtype=F64)
    paths = [(0,), (1, 0), (1, 1, 0), (1, 1, 1)]
    return tree(
        [(context, path, float(rewards[context, n])) for context in range(2) for n, path in enumerate(paths)],
        num_tokens=2,
    )


def wordy_problem(seed: int = 0) -> Problem:
    """Two turns of two-token actions."""
    return bandit(torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=F64), tokens_per_turn=2)


def table_engine(problem: Problem, update: UpdateRule = GENTLE, seed: int = 1) -> ExactEngine:
    logits = torch.randn(
        problem.num_nodes, problem.num_tokens, generator=torch.Generator().manual_seed(seed), dtype=F64
    )
    return ExactEngine(problem, TablePolicy(logits), update)


def network_engine(problem: Problem, update: UpdateRule = GENTLE, seed: int = 1) -> ExactEngine:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(problem.num_nodes, 3, generator=generator, dtype=F64)
    policy = NetworkPolicy(features, problem.num_tokens, hidden=5, generator=generator)
    return ExactEngine(problem, policy, update)


def sampled(engine: ExactEngine, per_context: int = 16, seed: int = 2) -> list[Trajectory]:
    """Sample a batch in which every trajectory has multiplicity 1; paths may repeat."""
    merged = engine.sample(per_context, torch.Generator().manual_seed(seed))
    singles = []
    for trajectory in merged:
        for copy in range(int(trajectory.multiplicity)):
            name = f"{trajectory.id}.{copy}"
            turns = tuple(replace(turn, trajectory=name) for turn in trajectory.turns)
            singles.append(replace(trajectory, id=name, turns=turns, multiplicity=1.0))
    return singles


def weights_of(engine: ExactEngine) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in engine.policy.parameters().values()])


class SpyingEngine(ExactEngine):
    """An exact engine that records its calls."""

    def __init__(self, inner: ExactEngine) -> None:
        super().__init__(inner.problem, inner.policy, inner.update)
        self.calls: list[tuple[str, list[Turn]]] = []
        self.normalizers: list[float] = []
        self.agents: list[int | None] = []

    def logprobs(self, turns, *, policy="current"):
        self.calls.append((policy, list(turns)))
        return super().logprobs(turns, policy=policy)

    def step(self, turns, objective, *, normalizer, agent=None):
        self.calls.append(("step", list(turns)))
        self.normalizers.append(normalizer)
        self.agents.append(agent)
        return super().step(turns, objective, normalizer=normalizer, agent=agent)
