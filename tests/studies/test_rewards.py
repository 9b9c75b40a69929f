"""Rewards of other implementations."""

import pytest

from seeupo.rollout.collector import load_reward
from seeupo.types import Trajectory, Turn

PUBLIC_CODE = "studies/rewards.py:public_code"


@pytest.mark.parametrize(
    ("score", "actions", "expected"),
    [
        (1.0, [(2,), (2,), (2,)], 1.5),
        (0.4, [(2,), (3,), (2,)], 0.2),
        (0.0, [(2,), (3,)], 0.0),
        (0.0, [(3,), (2,), (2,), (2,)], -1.0),
        (0.4, [(2,), (2,), (3,), (2,)], 0.2),
    ],
)
def test_reward_of_the_public_code(monkeypatch, request, score, actions, expected):
    monkeypatch.chdir(request.config.rootpath)
    turns = tuple(Turn("a", index, (1,), action) for index, action in enumerate(actions))
    reward = load_reward(PUBLIC_CODE, [PUBLIC_CODE])
    assert reward(Trajectory("a", "g", "t", turns, score, score=score)) == pytest.approx(expected)
