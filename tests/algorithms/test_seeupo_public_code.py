"""SeeUPO with the options that do what the authors' public code does, against a loop that restates it."""

from dataclasses import replace

import pytest
import torch

from algorithms.examples import F64, SpyingEngine, network_engine, ragged_problem, sampled, weights_of
from algorithms.test_backbones import ascend, clipped, token_logprobs
from seeupo.algorithms import SeeUPO
from seeupo.algorithms.common.trust_region import TrustRegionSettings
from seeupo.core.checks import OptionError
from studies.exact import GradientAscent

RATE = 3.0
PUBLIC_CODE = SeeUPO(
    ratio_base="turn",
    carry_clip=(0.02, 0.02),  # narrower than the code's 0.2, so that both clips are active here
    carry_total_clip=(0.03, 0.03),
    sample_deviation=True,
    advantage_clip=1.2,
    epochs=2,
)


def restated(engine, trajectories, options):
    """Update the engine turn by turn and return the weights that were used, by turn key."""
    rewards = torch.tensor([each.reward for each in trajectories], dtype=F64)
    centered = torch.stack(
        [
            each.reward - rewards[[n for n, other in enumerate(trajectories) if other.group == each.group]].mean()
            for each in trajectories
        ]
    )
    advantages = (centered / centered.std(correction=1)).clamp(-options.advantage_clip, options.advantage_clip)
    products, used = [1.0] * len(trajectories), {}
    for t in reversed(range(max(len(each.turns) for each in trajectories))):
        pool = [(n, each.turns[t]) for n, each in enumerate(trajectories) if len(each.turns) > t]
        old = {turn.key: token_logprobs(engine, turn).detach() for _, turn in pool}
        for n, turn in pool:
            low, high = options.carry_total_clip
            used[turn.key] = float(advantages[n]) * min(max(products[n], 1 - low), 1 + high)
        for _ in range(options.epochs):
            total = sum(
                clipped((token_logprobs(engine, turn) - old[turn.key]).mean().exp(), used[turn.key], options.clip)
                for _, turn in pool
            )
            ascend(engine, total / len(trajectories), RATE)
        for n, turn in pool:
            ratio = float((token_logprobs(engine, turn).detach() - old[turn.key]).mean().exp())
            products[n] *= min(max(ratio, 1 - options.carry_clip[0]), 1 + options.carry_clip[1])
    return used


def test_the_options_do_what_the_public_code_does():
    engine, twin = (network_engine(ragged_problem(), GradientAscent(RATE)) for _ in range(2))
    trajectories = sampled(engine, 6)
    update = PUBLIC_CODE.update(engine, trajectories)
    used = restated(twin, trajectories, PUBLIC_CODE)
    torch.testing.assert_close(weights_of(engine), weights_of(twin), rtol=0, atol=1e-11)
    found = {
        (each.id, credit.turn): credit.carried_before for each in update.trajectories for credit in each.credit.turns
    }
    assert found == pytest.approx({key: weight for key, weight in used.items() if weight != 0}, abs=1e-11)


@pytest.mark.parametrize(
    "without",
    [
        {"ratio_base": "theta_k"},
        {"carry_clip": None},
        {"carry_total_clip": None},
        {"sample_deviation": False},
        {"advantage_clip": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_option_matters(without):
    engines = [network_engine(ragged_problem(), GradientAscent(RATE)) for _ in range(2)]
    trajectories = sampled(engines[0], 6)
    for engine, options in zip(engines, (PUBLIC_CODE, replace(PUBLIC_CODE, **without)), strict=True):
        options.update(engine, trajectories)
    assert not torch.allclose(*map(weights_of, engines), rtol=0, atol=1e-9)


def test_the_base_of_a_turn_costs_no_pass_before_the_sweep():
    engine = SpyingEngine(network_engine(ragged_problem()))
    SeeUPO(ratio_base="turn", drift_every=0).update(engine, sampled(engine, 6))
    assert [kind for kind, _ in engine.calls] == ["current", "step", "current"] * 3


def test_expected_gain_is_reported_only_where_it_is_defined():
    for change in ({}, {"ratio_base": "turn"}, {"sample_deviation": True}, {"advantage_clip": 3.0}):
        engine = network_engine(ragged_problem())
        update = SeeUPO(**change).update(engine, sampled(engine, 6))
        assert ("expected_gain" in update.metrics[0].values) == (not change)


def test_a_trust_region_needs_ratios_relative_to_theta_k():
    with pytest.raises(OptionError, match=r"ratio_base = 'turn': expected \"theta_k\" with a trust region"):
        SeeUPO(ratio_base="turn", trust_region=TrustRegionSettings())
