"""Recorded weights and updates at equal KL."""

from dataclasses import replace

import pytest
import torch

from studies.credit.engine import GroupEngine, Groups, sample_groups
from studies.credit.measures import bias_and_variance, correlation, sign_agreement
from studies.credit.methods import METHODS, WITH_M, recorded_weights, seeupo, true_weights, update_at_kl
from studies.credit.problem import make_problem

F64 = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_recorded_m_is_the_advantage_times_the_ratios_of_later_turns():
    problem = make_problem("chain", turns=3, noise=0.1)
    groups = sample_groups(problem, 4, 8, seeded())
    engine = GroupEngine(problem, 4, learning_rate=20.0)
    before = engine.log_policy()
    update = seeupo("reverse").update(engine, groups.trajectories)
    weights = recorded_weights(update.trajectories, 3).view(-1, 3)
    changes = (engine.log_policy() - before).flatten(1)[groups.group, groups.cell].view(-1, 3)
    advantages = torch.tensor([trajectory.credit.advantage for trajectory in update.trajectories], dtype=F64)
    for t in range(3):
        expected = advantages * changes[:, t + 1 :].sum(1).exp()
        assert torch.allclose(weights[:, t], expected, atol=1e-12)
    assert changes.abs().max() > 0.1


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_updates_have_the_requested_kl(method):
    problem = make_problem("chain", turns=3, step_reward=0.5)
    groups = sample_groups(problem, 8, 8, seeded())
    updated = update_at_kl(method, problem, groups, 0.05, seeded)
    assert updated.kl == pytest.approx(0.05, rel=0.01)
    assert updated.weights.abs().sum() > 0
    start = problem.start[None]
    assert float(problem.expected_return(updated.log_policy.exp()).mean()) > float(problem.expected_return(start))


def test_weights_that_do_not_carry_are_linear_in_the_step():
    # The shortcut for such methods gives the policy that searching with whole runs gives.
    problem = make_problem("chain", turns=3)
    groups = sample_groups(problem, 8, 8, seeded())
    for method in METHODS:
        if not method.carries and method.algorithm is not None:
            short = update_at_kl(method, problem, groups, 0.05, seeded)
            long = update_at_kl(replace(method, carries=True), problem, groups, 0.05, seeded)
            assert torch.allclose(short.log_policy, long.log_policy, atol=1e-9), method.name


def test_m_never_changes_the_sign_of_the_advantage():
    problem = make_problem("deceptive", turns=4)
    groups = sample_groups(problem, 8, 16, seeded())
    with_m, without = (
        update_at_kl(method, problem, groups, 0.2, seeded).weights
        for method in METHODS
        if method.name in (WITH_M, "SeeUPO, without M")
    )
    assert torch.equal(with_m.sign(), without.sign())
    assert not torch.allclose(with_m, without)


def test_measures_of_known_weights():
    problem = make_problem("chain", turns=3)
    groups = sample_groups(problem, 400, 4, seeded())
    truth = true_weights(problem, groups)
    assert sign_agreement(2 * truth, truth, groups.count) == 1
    assert sign_agreement(-truth, truth, groups.count) == 0
    assert sign_agreement(0 * truth, truth, groups.count) == 0.5
    assert correlation(3 * truth + 1, truth, groups.count) == pytest.approx(1)
    assert correlation(torch.ones_like(truth), truth, groups.count) is None
    assert bias_and_variance(2 * truth, truth, groups) == pytest.approx((0, 0), abs=1e-12)
    assert bias_and_variance(-truth, truth, groups) is None

    # Noise is variance without bias. A constant is bias without variance.
    scale = float((groups.count * truth**2).sum() / groups.count.sum())
    noise = 0.1 * torch.randn(len(truth), generator=seeded(), dtype=F64)
    bias, variance = bias_and_variance(truth + noise, truth, groups)
    assert bias * scale == pytest.approx(0, abs=0.0005)
    assert variance * scale == pytest.approx(0.01, rel=0.2)
    singles = Groups(groups.trajectories, groups.group, groups.cell, torch.ones_like(groups.count))
    centered = truth - truth.mean()
    bias, variance = bias_and_variance(centered + 0.3, centered, singles)
    assert bias * float((centered**2).mean()) == pytest.approx(0.09)
    assert variance == pytest.approx(0, abs=1e-12)
