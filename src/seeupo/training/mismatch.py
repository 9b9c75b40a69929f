"""Corrections for differences between the policy that sampled and the policy that is trained.

An algorithm takes the log-probs that an engine computes before the first step for those of the policy that sampled.
They differ if the sampler uses other kernels or precision, and if trajectories were sampled ahead with older weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from seeupo.algorithms.batch import LogProbs, by_key
from seeupo.config.schema import MismatchSettings
from seeupo.core import length_mask
from seeupo.types import Objective, StepMetrics, TrainEngine, Turn, TurnKey


class BehaviorEngine:
    """An engine for one update, whose log-probs before the first step are those that the sampler recorded or computed.

    Everything else goes to the engine unchanged.

    Args:
        engine: Engine that trains.
        settings: Corrections of the gradients.
        recorded: Whether ratios are relative to the policy that sampled, as the sampler recorded its log-probs. This is
            needed if trajectories were sampled with older weights.
    """

    def __init__(self, engine: TrainEngine, settings: MismatchSettings, *, recorded: bool) -> None:
        self.engine, self.settings, self.recorded = engine, settings, recorded
        self.weights: dict[TurnKey, Tensor] = {}
        self._stepped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        if policy == "reference" or self._stepped:
            return self.engine.logprobs(turns, policy=policy)
        sampled = recorded_logprobs(turns)
        if self.recorded:
            return [sampled[turn.key] for turn in turns]
        computed = self.engine.logprobs(turns)
        if self.settings.corrects:
            self.weights |= importance_weights(turns, by_key(turns, computed), sampled, self.settings)
        return computed

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: int | None = None
    ) -> StepMetrics:
        self._stepped = True
        if self.weights:
            objective = WeightedObjective(objective, {turn.key: self.weights[turn.key] for turn in turns})
        return self.engine.step(turns, objective, normalizer=normalizer, agent=agent)

    def metrics(self) -> dict[str, float]:
        """Return the mean weight per token and the share of turns without a gradient."""
        if not self.weights:
            return {}
        weights = list(self.weights.values())
        masked = sum(not bool(weight.any()) for weight in weights)
        return {
            "importance_weight": float(torch.cat(weights).mean()),
            "masked_turns": masked / len(weights),
        }


@dataclass(frozen=True)
class WeightedObjective:
    """An objective whose gradient with respect to each token's log-prob is multiplied by a constant weight.

    The value stays that of the objective, because weights enter as w log p + (1 - w) log p without gradient.

    Attributes:
        weights: Weights [len(action)] by turn key.
    """

    objective: Objective
    weights: LogProbs

    @property
    def needs_entropy(self) -> bool:
        return self.objective.needs_entropy

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, turns: Sequence[Turn]) -> Tensor:
        weights_NL = torch.zeros_like(logprobs_NL)
        for row, turn in enumerate(turns):
            weights_NL[row, : len(turn.action_ids)] = self.weights[turn.key].to(weights_NL)
        mask_NL = length_mask(torch.tensor([len(turn.action_ids) for turn in turns])).to(logprobs_NL.device)
        fixed_NL = torch.where(mask_NL, logprobs_NL.detach(), 0.0)
        moving_NL = torch.where(mask_NL, logprobs_NL, 0.0) - fixed_NL
        return self.objective(fixed_NL + weights_NL * moving_NL, entropies_NL, turns)


def recorded_logprobs(turns: Sequence[Turn]) -> LogProbs:
    """Return the log-probs that the sampler recorded, by turn key."""
    missing = [turn.key for turn in turns if turn.behavior_logprobs is None]
    if missing:
        raise ValueError(f"turn {missing[0]} has no log-probs of a sampler; it cannot be corrected for")
    return {turn.key: torch.tensor(turn.behavior_logprobs, dtype=torch.float32) for turn in turns}


def importance_weights(
    turns: Sequence[Turn], trained: LogProbs, sampled: LogProbs, settings: MismatchSettings
) -> dict[TurnKey, Tensor]:
    """Return the weight of each token's gradient, [len(action)] by turn key.

    With l = log pi_trainer - log pi_sampler: w = min(exp(l), C) per token, or min(exp(sum of l), C) per turn, and 0 in
    turns whose exp(mean of l) is outside the bounds.
    """
    weights = {}
    for turn in turns:
        difference = trained[turn.key].double() - sampled[turn.key].double()
        weight = torch.ones_like(difference)
        if settings.tis_cap is not None:
            exponent = difference if settings.tis_level == "token" else difference.sum().expand_as(difference)
            weight = exponent.exp().clamp(max=settings.tis_cap)
        if settings.turn_bounds is not None and len(difference):
            low, high = settings.turn_bounds
            weight = weight * float(low <= float(difference.mean().exp()) <= high)
        weights[turn.key] = weight.float()
    return weights
