"""TrainEngine for many independent groups of one small problem, with a critic of a given error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seeupo.engines.optimizer import shrinkable
from seeupo.protocols import Capability, CriticLoss, Objective
from seeupo.types import AgentId, StepMetrics, Trajectory, Turn
from studies.credit.problem import ACTIONS, F64, NODES, ON, STATES, CreditProblem
from studies.exact import GradientAscent, TablePolicy
from studies.exact.updates import Pool


@dataclass(frozen=True)
class Groups:
    """Sampled groups of trajectories.

    Attributes:
        trajectories: Distinct paths of each group; the multiplicity of a path is the number of times it was sampled.
        group: Group of each turn [n], in the order of trajectories and turns.
        cell: Index of each turn's (turn, state, action) [n].
        count: Multiplicity of each turn's path [n].
    """

    trajectories: tuple[Trajectory, ...]
    group: Tensor
    cell: Tensor
    count: Tensor


def sample_groups(problem: CreditProblem, groups: int, group_size: int, generator: torch.Generator) -> Groups:
    """Sample `group_size` trajectories of the first policy for each group."""
    size = groups * group_size
    state = torch.full((size,), ON)
    states, actions = [], []
    for t in range(problem.num_turns):
        action = torch.multinomial(problem.start[t, state], 1, generator=generator)[:, 0]
        states.append(state)
        actions.append(action)
        state = torch.multinomial(problem.transitions[t, state, action], 1, generator=generator)[:, 0]
    columns = torch.stack([torch.arange(size) // group_size, state, *states, *actions], 1)
    paths = Counter(map(tuple, columns.tolist()))
    trajectories = tuple(_trajectory(problem, n, path, count) for n, (path, count) in enumerate(paths.items()))
    kept, counts = torch.tensor(list(paths)), torch.tensor(list(paths.values()), dtype=F64)
    turns = problem.num_turns
    places = (torch.arange(turns) * STATES + kept[:, 2 : 2 + turns]) * ACTIONS + kept[:, 2 + turns :]
    return Groups(trajectories, kept[:, 0].repeat_interleave(turns), places.flatten(), counts.repeat_interleave(turns))


def _trajectory(problem: CreditProblem, number: int, path: tuple[int, ...], count: int) -> Trajectory:
    (group, end), turns = path[:2], problem.num_turns
    states, actions = path[2 : 2 + turns], path[2 + turns :]
    rewards = [float(problem.rewards[t, s, a]) for t, (s, a) in enumerate(zip(states, actions, strict=True))]
    outcome = float(problem.outcomes[end])
    return Trajectory(
        id=str(number),
        group=str(group),
        task=str(group),
        turns=tuple(
            Turn(
                str(number),
                t,
                (group * problem.num_nodes + (t * STATES + state) * NODES,),
                divmod(action, 2),
                reward=reward,
                state_key=f"{t}.{state}",
            )
            for t, (state, action, reward) in enumerate(zip(states, actions, rewards, strict=True))
        ),
        reward=outcome + sum(rewards),
        outcome=outcome if problem.step_rewards else None,
        multiplicity=float(count),
    )


class GroupEngine:
    """Table policies of C independent groups, updated by gradient ascent.

    The critic's values are the true ones plus a normal error per group and node, whose standard deviation is
    `critic_error` times that of the reward. It is not trained.
    """

    iteration = 0
    capabilities: frozenset[Capability] = frozenset({"critic", "shrink"})

    def __init__(
        self,
        problem: CreditProblem,
        groups: int,
        *,
        learning_rate: float,
        critic_error: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        self.problem = problem
        self.old = problem.token_log_probs().repeat(groups, 1)
        self.policy = TablePolicy(self.old)
        self.update = GradientAscent(learning_rate)
        error = torch.randn(len(self.old), generator=generator, dtype=F64)
        self._values = node_values(problem).repeat(groups) + critic_error * problem.return_deviation() * error

    def log_policy(self) -> Tensor:
        """Return log pi(action) [C, T, S, A]."""
        return self.problem.action_log_probs(self.policy.log_probs().detach())

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        log_policy = self.policy.log_probs().detach() if policy == "current" else self.old
        return list(log_policy[locate(turns)].unbind(0))

    def shrinkable_steps(self) -> AbstractContextManager[Callable[[float], None]]:
        return shrinkable(self.policy.parameters())

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: AgentId | None = None
    ) -> StepMetrics:
        nodes, tokens = locate(turns)
        pool = Pool(
            nodes=nodes,
            tokens=tokens,
            mask=torch.ones_like(nodes, dtype=torch.bool),
            evaluate=lambda logprobs_NL, entropies_NL: objective(logprobs_NL, entropies_NL, turns),
            normalizer=normalizer,
            sampled_from=self.old.exp(),
            reach=lambda: self.problem.reach(self.problem.action_log_probs(self.old).exp()),
        )
        return StepMetrics(agent, self.update(self.policy, pool))

    def values(self, trajectories: Sequence[Trajectory]) -> list[Tensor]:
        nodes, _ = locate([turn for trajectory in trajectories for turn in trajectory.turns])
        before = self._values[nodes].view(len(trajectories), -1)
        return list(torch.cat([before, torch.zeros(len(before), 1, dtype=F64)], 1).unbind(0))

    def step_critic(self, turns: Sequence[Turn], loss: CriticLoss, *, normalizer: float) -> StepMetrics:
        return StepMetrics(None, {})


def node_values(problem: CreditProblem) -> Tensor:
    """Return the true value before each token under the first policy [nodes]."""
    probs = problem.start[None]
    V, Q = problem.values(probs)
    pairs = (probs * Q).unflatten(3, (2, 2)).sum(4) / probs.unflatten(3, (2, 2)).sum(4)
    return torch.cat([V[..., None], pairs], 3).flatten()


def locate(turns: Sequence[Turn]) -> tuple[Tensor, Tensor]:
    """Return nodes and tokens [N, 2] of the turns' actions."""
    tokens = torch.tensor([turn.action_ids for turn in turns])
    first = torch.tensor([turn.prompt_ids[0] for turn in turns])
    return torch.stack([first, first + 1 + tokens[:, 0]], 1), tokens
