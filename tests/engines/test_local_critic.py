from dataclasses import dataclass

import pytest
import torch

from engines.examples import engine, objective_for, trajectories, weights
from seeupo.config.optimizer_settings import CriticOptimizerSettings, CriticSettings
from seeupo.types import turns_of

BATCH = trajectories()


@dataclass(frozen=True)
class TowardsReward:
    """Squared error of every value against the reward of its trajectory."""

    rewards: dict[str, float]

    def __call__(self, values_NL, turns):
        lengths = torch.tensor([len(turn.action_ids) for turn in turns])
        mask = torch.arange(values_NL.shape[1]) < lengths[:, None]
        targets = torch.tensor([self.rewards[turn.trajectory] for turn in turns], dtype=values_NL.dtype)
        return ((values_NL - targets[:, None]).square() * mask).sum(1)


LOSS = TowardsReward({trajectory.id: trajectory.reward for trajectory in BATCH})


def with_critic(backbone="own", rate=1e-2, **options):
    optimizer = CriticOptimizerSettings(learning_rate=rate, weight_decay=0.0)
    return engine(critic=CriticSettings(backbone=backbone, optimizer=optimizer), **options)


def fit(local, steps):
    turns = turns_of(BATCH)
    count = sum(len(turn.action_ids) for turn in turns)
    return [local.step_critic(turns, LOSS, normalizer=count).values["critic_loss"] for _ in range(steps)]


@pytest.mark.parametrize("backbone", ["own", "policy"])
@pytest.mark.parametrize("packing", ["tree", "padded"])
def test_critic_learns_returns_and_does_not_change_the_policy(backbone, packing):
    local = with_critic(backbone, packing=packing)
    before = weights(local)
    losses = fit(local, 30)
    assert losses[-1] < losses[0] * (0.2 if backbone == "own" else 0.7)
    assert torch.equal(weights(local), before)


def test_step_does_not_depend_on_packing_or_micro_batches():
    ends = []
    for packing, batch_tokens in [("tree", 10_000), ("tree", 64), ("padded", 64)]:
        local = with_critic(packing=packing, batch_tokens=batch_tokens)
        fit(local, 3)
        ends.append(torch.cat(local.values(BATCH)))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-7)
    torch.testing.assert_close(ends[0], ends[2], rtol=0, atol=1e-7)


def test_values_cover_the_trajectory_and_its_final_state():
    local = with_critic(rate=1e-1)
    fit(local, 3)
    actual = local.values(BATCH)
    for trajectory, row in zip(BATCH, actual, strict=True):
        assert row.shape == (sum(len(turn.action_ids) for turn in trajectory.turns) + 1,)
        last = local.values([trajectory])[0]
        torch.testing.assert_close(row, last)
    assert len({round(float(value), 12) for value in actual[0]}) == len(actual[0])


def test_value_head_follows_the_policy_and_separate_backbone_does_not():
    for backbone, follows in [("policy", True), ("own", False)]:
        local = with_critic(backbone)
        fit(local, 2)
        before = torch.cat(local.values(BATCH))
        turns = turns_of(BATCH)
        local.step(turns, objective_for(local, turns), normalizer=8)
        assert torch.equal(torch.cat(local.values(BATCH)), before) is not follows


@pytest.mark.parametrize("backbone", ["own", "policy"])
def test_critic_resumes_exactly_after_save_and_load(tmp_path, backbone):
    one, other = with_critic(backbone), with_critic(backbone)
    fit(one, 2)
    one.save(tmp_path / "saved")
    other.load(tmp_path / "saved")
    assert fit(one, 2) == fit(other, 2)
    assert torch.equal(torch.cat(one.values(BATCH)), torch.cat(other.values(BATCH)))
    engine().save(tmp_path / "plain")
    with pytest.raises(ValueError, match="has no critic/"):
        other.load(tmp_path / "plain")


def test_critic_has_a_separate_learning_rate_schedule():
    optimizer = CriticOptimizerSettings(learning_rate=1e-2, schedule="linear", iterations=4)
    local = engine(critic=CriticSettings(optimizer=optimizer), learning_rate=1e-4)
    local.begin_iteration(2)
    turns = turns_of(BATCH)
    assert local.step_critic(turns, LOSS, normalizer=8).values["learning_rate"] == pytest.approx(5e-3)
    assert local.step(turns, objective_for(local, turns), normalizer=8).values["learning_rate"] == 1e-4


def test_invalid_critics_are_refused(tmp_path):
    with pytest.raises(ValueError, match="this engine has no critic"):
        engine().values(BATCH)
    with pytest.raises(ValueError, match="backbone = 'shared'"):
        CriticSettings(backbone="shared")
    with pytest.raises(ValueError, match=r"optimizer\.trainable"):
        CriticSettings(optimizer=CriticOptimizerSettings(trainable=("norm",)))
    with_critic("policy").save(tmp_path / "saved")
    with pytest.raises(ValueError, match="has no critic/backbone"):
        with_critic("own").load(tmp_path / "saved")
