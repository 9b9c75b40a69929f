"""An engine whose policy is a table of logits and whose steps only record losses and gradients.

The first step is taken at theta_k, all later ones at the batch's second table. Gradients are those of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from peers.batches import RandomBatch
from seeupo.algorithms.common.objective import RatioObjective
from seeupo.protocols import Capability, CriticLoss, Objective
from seeupo.types import AgentId, StepMetrics, Trajectory, Turn


@dataclass(frozen=True)
class Step:
    """One step: its rows, the loss, the gradient, and the objective or critic loss of the algorithm."""

    rows: list[int]
    loss: Tensor
    gradient: Tensor
    objective: Any


class TableEngine:
    """A TrainEngine and a CriticEngine on a random batch."""

    def __init__(self, batch: RandomBatch) -> None:
        self.batch = batch
        self.iteration = 0
        self.capabilities: frozenset[Capability] = frozenset({"critic"})
        self.steps: list[Step] = []
        self.critic_steps: list[Step] = []

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        logits = self.batch.reference if policy == "reference" else self._logits()
        return self._actions(self.batch.logprobs(logits), turns)

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: AgentId | None = None
    ) -> StepMetrics:
        logits = self._logits().clone().requires_grad_()
        logprobs, entropies = self.batch.logprobs(logits), self.batch.entropies(logits)
        total = logits.new_zeros(())
        # An engine may permute and split the turns, and padding may hold anything.
        for part in (turns[::-2], turns[-2::-2]):
            if part:
                padded = (
                    pad_sequence(self._actions(table, part), batch_first=True, padding_value=float("nan"))
                    for table in (logprobs, entropies)
                )
                total = total + objective(*padded, part).sum()
        loss = -total / normalizer
        self.steps.append(self._step(turns, loss, logits, objective))
        return StepMetrics(agent, {"grad_norm": float(self.steps[-1].gradient.norm())})

    def values(self, trajectories: Sequence[Trajectory]) -> list[Tensor]:
        rows = [self.batch.row[trajectory.id] for trajectory in trajectories]
        return [
            torch.cat([self.batch.values[row][self.batch.mask[row].bool()], self.batch.end_values[row : row + 1]])
            for row in rows
        ]

    def step_critic(self, turns: Sequence[Turn], loss: CriticLoss, *, normalizer: float) -> StepMetrics:
        values = (self.batch.moved_values if self.critic_steps else self.batch.values).clone().requires_grad_()
        total = values.new_zeros(())
        for part in (turns[::-2], turns[-2::-2]):
            if part:
                total = total + loss(pad_sequence(self._actions(values, part), batch_first=True), part).sum()
        self.critic_steps.append(self._step(turns, total / normalizer, values, loss))
        return StepMetrics(None, {"grad_norm": 0.0})

    def _logits(self) -> Tensor:
        return self.batch.after if self.steps else self.batch.before

    def _actions(self, table: Tensor, turns: Sequence[Turn]) -> list[Tensor]:
        return [table[self.batch.row[turn.trajectory], self.batch.columns[turn.key]] for turn in turns]

    def _step(self, turns: Sequence[Turn], loss: Tensor, leaf: Tensor, objective: Any) -> Step:
        gradient = torch.autograd.grad(loss, leaf, allow_unused=True)[0] if loss.requires_grad else None
        rows = sorted({self.batch.row[turn.trajectory] for turn in turns})
        return Step(rows, loss.detach(), torch.zeros_like(leaf) if gradient is None else gradient, objective)


def advantages_of(trajectories: Sequence[Trajectory], like: Tensor) -> Tensor:
    """Return the advantages [N] that an update recorded."""
    found = [t.credit.advantage if t.credit else float("nan") for t in trajectories]
    return torch.tensor(found, dtype=torch.float64).to(like)


def token_advantages(batch: RandomBatch, objective: RatioObjective) -> Tensor:
    """Return the token-level advantages [N, L] of an objective."""
    return batch.over_rows(objective.advantages)
