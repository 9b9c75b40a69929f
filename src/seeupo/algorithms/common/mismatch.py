"""Corrections for differences between the policy that sampled and the policy that is trained.

An algorithm takes the log-probs that an engine computes before the first step for those of the policy that sampled.
They differ if the sampler uses other kernels or precision, and if trajectories were sampled ahead with older weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import LogProbs, by_key
from seeupo.algorithms.common.objective import RatioObjective
from seeupo.core import length_mask
from seeupo.core.checks import OptionError, check_at_least, check_choice, check_count
from seeupo.protocols import Objective, ShrinkableEngine, TrainEngine
from seeupo.types import StepMetrics, Turn, TurnKey

Level = Literal["token", "turn"]


@dataclass(frozen=True, kw_only=True)
class MismatchSettings:
    """Differences between the log-probs of sampler and trainer: how they are checked and corrected.

    Attributes:
        check_every: Iterations between comparisons of both log-probs on a few trajectories; 0 never compares.
        max_gap: Mean absolute difference per token above which training stops; "none" means no limit.
        recorded_gap: Mean absolute difference per token up to which the sampler's log-probs replace the forward pass
            before the first step, in iterations that compare both; "none" always computes them.
        tis_cap: C of truncated importance sampling, which multiplies gradients by w = min(pi_trainer / pi_sampler, C);
            "none" means w = 1.
        tis_level: "token": w from the probabilities of each token; "turn": from the product over a turn.
        turn_bounds: Bounds (low, high) of a turn's geometric mean of pi_trainer / pi_sampler; turns outside have no
            gradient. "none" uses all turns.
    """

    check_every: int = 1
    max_gap: float | None = 0.5
    recorded_gap: float | None = None
    tis_cap: float | None = None
    tis_level: Level = "token"
    turn_bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_count("check_every", self.check_every, 0)
        check_choice("tis_level", self.tis_level, get_args(Level))
        for name in ("max_gap", "recorded_gap", "tis_cap"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 0)
        if self.recorded_gap is not None and not self.check_every:
            raise OptionError("recorded_gap", self.recorded_gap, '"none" with check_every = 0, which never compares')
        if self.turn_bounds is not None and not 0 <= self.turn_bounds[0] <= 1 <= self.turn_bounds[1]:
            raise OptionError("turn_bounds", self.turn_bounds, "a pair (low, high) with low <= 1 <= high")

    @property
    def corrects(self) -> bool:
        """Whether gradients are corrected."""
        return self.tis_cap is not None or self.turn_bounds is not None


class BehaviorEngine:
    """An engine for one update, which accounts for the difference between the policy that sampled and the trained one.

    Everything else goes to the engine unchanged.

    Args:
        engine: Engine that trains.
        settings: Corrections of the gradients.
        recorded: Whether the log-probs before the first step are those that the sampler recorded, so that ratios are
            relative to the policy that sampled. Needed if it had older weights, and saves a forward pass if both agree;
            corrections are then in the ratio.

    Attributes:
        tokens: Number of prompt and response tokens that passed through the policy so far, each time they did.
    """

    def __init__(self, engine: TrainEngine, settings: MismatchSettings, *, recorded: bool = False) -> None:
        self.engine, self.settings, self.recorded = engine, settings, recorded
        self.weights: dict[TurnKey, Tensor] = {}
        self.tokens = 0
        self._stepped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def logprobs(self, turns: Sequence[Turn], *, policy: Literal["current", "reference"] = "current") -> list[Tensor]:
        if self.recorded and policy == "current" and not self._stepped:
            sampled = recorded_logprobs(turns)
            return [sampled[turn.key] for turn in turns]
        self.tokens += number_of_tokens(turns)
        found = self.engine.logprobs(turns, policy=policy)
        if self.settings.corrects and policy == "current" and not self._stepped:
            # Before the first step these are the log-probs of the policy that sampled, as the trainer computes them.
            self.weights |= importance_weights(turns, by_key(turns, found), recorded_logprobs(turns), self.settings)
        return found

    def step(
        self, turns: Sequence[Turn], objective: Objective, *, normalizer: float, agent: int | None = None
    ) -> StepMetrics:
        if self.recorded and not self._stepped and isinstance(objective, RatioObjective):
            # The policy has changed since it sampled: the ratios of a trajectory's other turns do not start at 1.
            objective = objective.for_step(lambda each: by_key(each, self.engine.logprobs(each)), turns)
        self._stepped = True
        self.tokens += number_of_tokens(turns)
        if self.weights:
            objective = WeightedObjective(objective, {turn.key: self.weights[turn.key] for turn in turns})
        return self.engine.step(turns, objective, normalizer=normalizer, agent=agent)

    def shrinkable_steps(self) -> AbstractContextManager[Callable[[float], None]]:
        return cast("ShrinkableEngine", self.engine).shrinkable_steps()

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


def number_of_tokens(turns: Sequence[Turn]) -> int:
    """Return the number of tokens of all prompts and responses."""
    return sum(len(turn.prompt_ids) + len(turn.action_ids) for turn in turns)


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
