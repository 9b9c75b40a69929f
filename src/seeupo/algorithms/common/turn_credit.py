"""Rewards and advantages of single turns, for algorithms with turn-level credit."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import Batch
from seeupo.algorithms.common.records import mean_and_sd
from seeupo.core.advantages import Normalize, group_advantages
from seeupo.types import Trajectory, Turn, TurnKey


def outcome_of(trajectory: Trajectory) -> float:
    """Return the part of the reward that is earned at the end."""
    return trajectory.reward if trajectory.outcome is None else trajectory.outcome


def step_rewards(trajectory: Trajectory) -> list[float]:
    """Return the step reward of each turn; 0 if step rewards are not trained on."""
    if trajectory.outcome is None:
        return [0.0] * len(trajectory.turns)
    return [turn.reward for turn in trajectory.turns]


def discounted_returns(trajectory: Trajectory, gamma: float) -> list[float]:
    """Return the return from each turn on: its own reward plus gamma times the return of the next turn.

    The outcome is earned with the last turn.
    """
    returns: list[float] = []
    for reward in reversed(step_rewards(trajectory)):
        later = gamma * returns[-1] if returns else outcome_of(trajectory)
        returns.append(reward + later)
    return returns[::-1]


def compare_turns(
    batch: Batch, values: Mapping[TurnKey, float], groups: Mapping[TurnKey, Hashable], normalize: Normalize
) -> tuple[dict[TurnKey, float], dict[str, float]]:
    """Return the advantage of each turn among the turns of its group, which is exactly 0 if it is the only one.

    The metrics are the mean number of turns in a group, the fraction of turns that are alone in theirs, and the
    standard deviation of the advantages.
    """
    if not values:
        return {}, {}
    number = {group: n for n, group in enumerate(dict.fromkeys(groups[key] for key in values))}
    labels = torch.tensor([number[groups[key]] for key in values])
    counts = torch.tensor([batch.multiplicities[name] for name, _ in values], dtype=torch.float64)
    advantages = group_advantages(
        torch.tensor(list(values.values()), dtype=torch.float64), labels, normalize=normalize, weights=counts
    )
    sizes = labels.bincount()
    alone = (sizes == 1)[labels]
    metrics = {
        "turn_group_size": float(sizes.double().mean()),
        "lone_turn_fraction": float(counts[alone].sum() / counts.sum()),
        "turn_advantage_sd": mean_and_sd(advantages, counts)[1],
    }
    return dict(zip(values, advantages.tolist(), strict=True)), metrics


def over_tokens(turns: Sequence[Turn], values: Mapping[TurnKey, float]) -> dict[TurnKey, Tensor]:
    """Return the value of each turn for each of its tokens [len(action)]."""
    return {turn.key: torch.full((len(turn.action_ids),), values[turn.key], dtype=torch.float64) for turn in turns}
