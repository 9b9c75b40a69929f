"""TrainEngine for enumerated problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from seeupo.engines.optimizer import shrinkable
from seeupo.protocols import Capability, Objective
from seeupo.types import AgentId, StepMetrics, Trajectory, Turn
from studies.exact.policy import Policy
from studies.exact.problem import Problem
from studies.exact.updates import Pool, UpdateRule


class ExactEngine:
    """Policy on an enumerated problem, updated by one of the rules in `updates`.

    A trajectory is a path of the problem. Its multiplicity is its probability (`enumerate`) or the number of times it
    was sampled (`sample`). A turn's prompt is the index of the node at which its first token is chosen.
    """

    def __init__(self, problem: Problem, policy: Policy, update: UpdateRule) -> None:
        shape, needed = tuple(policy.log_probs().shape), (problem.num_nodes, problem.num_tokens)
        if shape != needed:
            raise ValueError(f"the policy has shape {shape}; the problem has {needed[0]} nodes and {needed[1]} tokens")
        self.problem, self.policy, self.update = problem, policy, update
        self.capabilities: frozenset[Capability] = frozenset({"shrink"})
        self.iteration = 0
        self._reference = self.log_policy()
        self._sampled_from = self._reference
        self._paths = [self._trajectory(path) for path in range(len(problem.nodes))]
        # Index of the next node within a turn, by node and token.
        self._next = torch.zeros(problem.num_nodes, problem.num_tokens, dtype=torch.long)
        for node, token, following in zip(
            problem.nodes[:, :, :-1].flatten(), problem.tokens[:, :, :-1].flatten(), problem.nodes[:, :, 1:].flatten(),
            strict=True,
        ):  # fmt: skip
            if following >= 0:
                self._next[node, token] = following

    def log_policy(self) -> Tensor:
        """Return the current log pi [nodes, V], without gradient."""
        return self.policy.log_probs().detach()

    def expected_return(self) -> float:
        """Return J of the current policy."""
        return float(self.problem.expected_return(self.log_policy()))

    def enumerate(self) -> list[Trajectory]:
        """Return every path that the current policy can take, weighted by its probability."""
        self._sampled_from = self.log_policy()
        return self._weighted(self.problem.path_probs(self._sampled_from))

    def sample(self, per_context: int, generator: torch.Generator) -> list[Trajectory]:
        """Sample `per_context` paths for each initial state; merge equal paths and count them in the multiplicity."""
        self._sampled_from = self.log_policy()
        probs = self.problem.path_probs(self._sampled_from)
        counts = torch.zeros_like(probs)
        for context in self.problem.contexts.unique():
            members = (self.problem.contexts == context).nonzero().flatten()
            drawn = torch.multinomial(probs[members], per_context, replacement=True, generator=generator)
            counts.index_add_(0, members[drawn], torch.ones(per_context, dtype=counts.dtype))
        return self._weighted(counts)

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        log_policy = self.log_policy() if policy == "current" else self._reference
        nodes, tokens, mask = self._locate(turns)
        rows, lengths = log_policy[nodes, tokens], mask.sum(1).tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: AgentId | None = None
    ) -> StepMetrics:
        nodes, tokens, mask = self._locate(turns)
        pool = Pool(
            nodes=nodes,
            tokens=tokens,
            mask=mask,
            evaluate=lambda logprobs_NL, entropies_NL: objective(logprobs_NL, entropies_NL, turns),
            normalizer=normalizer,
            sampled_from=self._sampled_from.exp(),
            reach=lambda: self.problem.reach(self._sampled_from),
        )
        return StepMetrics(agent, self.update(self.policy, pool))

    def shrinkable_steps(self) -> AbstractContextManager[Callable[[float], None]]:
        return shrinkable(self.policy.parameters())

    def _trajectory(self, path: int) -> Trajectory:
        name, context = str(path), str(int(self.problem.contexts[path]))
        turns = []
        for t in range(self.problem.num_turns):
            nodes = self.problem.nodes[path, t]
            if nodes[0] >= 0:
                tokens = tuple(self.problem.tokens[path, t][nodes >= 0].tolist())
                turns.append(Turn(name, t, (int(nodes[0]),), tokens, state_key=str(int(nodes[0]))))
        return Trajectory(
            id=name, group=context, task=context, turns=tuple(turns), reward=float(self.problem.returns[path])
        )

    def _weighted(self, weights: Tensor) -> list[Trajectory]:
        pairs = zip(self._paths, weights.tolist(), strict=True)
        return [replace(path, multiplicity=weight) for path, weight in pairs if weight > 0]

    def _locate(self, turns: Sequence[Turn]) -> tuple[Tensor, Tensor, Tensor]:
        """Return nodes, tokens and mask [N, L] of the turns' actions; padding points at node 0 and token 0."""
        longest = max((len(turn.action_ids) for turn in turns), default=0)
        rows = [[*turn.action_ids, *[-1] * (longest - len(turn.action_ids))] for turn in turns]
        tokens = torch.tensor(rows, dtype=torch.long).view(len(turns), longest)
        mask = tokens >= 0
        tokens = tokens.clamp(min=0)
        nodes = torch.zeros_like(tokens)
        node = torch.tensor([turn.prompt_ids[-1] for turn in turns])
        for position in range(longest):
            nodes[:, position] = node
            node = self._next[node, tokens[:, position]]
        return nodes, tokens, mask
