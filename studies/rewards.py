"""Rewards of other implementations, named as `collect.reward = "studies/rewards.py:public_code"`."""

from __future__ import annotations

from seeupo import reward_function
from seeupo.types import Trajectory

REPEATS = 3
"""Number of identical responses in a row that count as repetition."""


@reward_function
def public_code(trajectory: Trajectory) -> float:
    """Return the reward of the authors' public code, which is not in the paper.

    It is 1.5 for a success, -1 for a failed episode with the same response three times in a row, and otherwise half of
    the score.
    """
    score = trajectory.score or 0.0
    if score == 1.0:
        return 1.5
    actions = [turn.action_ids for turn in trajectory.turns]
    repeated = any(len(set(actions[first : first + REPEATS])) == 1 for first in range(len(actions) - REPEATS + 1))
    return -1.0 if repeated else 0.5 * score
