"""Log-probs of the policy that sampled, and weights that correct for its difference from the policy that is trained.

Both policies are meant to be theta_k. They differ if the sampler uses other kernels or precision, and if trajectories
were sampled ahead with older weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import LogProbs, logprobs_by_key
from seeupo.protocols import TrainEngine
from seeupo.types import Behavior, Turn, TurnKey


def behavior_logprobs(engine: TrainEngine, turns: Sequence[Turn], behavior: Behavior) -> LogProbs:
    """Return log pi_{theta_k} of the turns, the denominator of all ratios; before the first step of an update."""
    if behavior.recorded:
        return recorded_logprobs(turns)
    return logprobs_by_key(engine, turns)


def importance_weights(turns: Sequence[Turn], trained: LogProbs, behavior: Behavior) -> dict[TurnKey, Tensor]:
    """Return the weight of each token's gradient, [len(action)] by turn key; nothing if all of them are 1.

    With l = log pi_trainer - log pi_sampler: w = min(exp(l), C) per token, or min(exp(sum of l), C) per turn, and 0 in
    turns whose exp(mean of l) is outside the bounds. `trained` are the trainer's log-probs before the first step.
    """
    if behavior.recorded or (behavior.tis_cap is None and behavior.turn_bounds is None):
        return {}
    sampled = recorded_logprobs(turns)
    weights = {}
    for turn in turns:
        difference = trained[turn.key].double() - sampled[turn.key].double()
        weight = torch.ones_like(difference)
        if behavior.tis_cap is not None:
            exponent = difference if behavior.tis_level == "token" else difference.sum().expand_as(difference)
            weight = exponent.exp().clamp(max=behavior.tis_cap)
        if behavior.turn_bounds is not None and len(difference):
            low, high = behavior.turn_bounds
            weight = weight * float(low <= float(difference.mean().exp()) <= high)
        weights[turn.key] = weight.float()
    return weights


def importance_metrics(weights: LogProbs) -> dict[str, float]:
    """Return the mean weight per token and the share of turns without a gradient; nothing without weights."""
    if not weights:
        return {}
    masked = sum(not bool(weight.any()) for weight in weights.values())
    return {
        "importance_weight": float(torch.cat(list(weights.values())).mean()),
        "masked_turns": masked / len(weights),
    }


def recorded_logprobs(turns: Sequence[Turn]) -> LogProbs:
    """Return the log-probs that the sampler recorded, by turn key."""
    missing = [turn.key for turn in turns if turn.behavior_logprobs is None]
    if missing:
        raise ValueError(f"turn {missing[0]} has no log-probs of a sampler; it cannot be corrected for")
    return {turn.key: torch.tensor(turn.behavior_logprobs, dtype=torch.float32) for turn in turns}
