"""Variants of SeeUPO: the replica of the authors' public code against a loop that restates it, controls, drift."""

import math
from dataclasses import replace

import pytest
import torch

from algorithms.examples import F64, network_engine, ragged_problem, sampled, table_engine, weights_of, wordy_problem
from algorithms.test_backbones import ascend, clipped, token_logprobs
from algorithms.test_seeupo import credit_by_turn, three_turn_example
from seeupo.core.carry import CarriedAdvantage
from studies.exact import GradientAscent
from studies.variants import MeasuredDrift, OtherCarryRatio, PublicCode, ShuffledCarry

RATE = 3.0
PUBLIC_CODE = PublicCode(
    kl_coef=0.0,
    carry_clip=(0.02, 0.02),  # narrower than the code's 0.2, so that both clips are active here
    carry_total_clip=(0.03, 0.03),
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


def test_the_replica_does_what_the_public_code_does():
    engine, twin = (network_engine(ragged_problem(), GradientAscent(RATE)) for _ in range(2))
    trajectories = sampled(engine, 6)
    update = PUBLIC_CODE.update(engine, trajectories)
    used = restated(twin, trajectories, PUBLIC_CODE)
    torch.testing.assert_close(weights_of(engine), weights_of(twin), rtol=0, atol=1e-11)
    results = {
        (trajectory.id, credit.turn): credit.carried_before
        for trajectory in update.trajectories
        for credit in trajectory.credit.turns
    }
    assert results == pytest.approx({key: weight for key, weight in used.items() if weight != 0}, abs=1e-11)


@pytest.mark.parametrize(
    "without",
    [
        {"ratio_per_turn": False},
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


def test_expected_gain_is_not_reported_where_it_is_not_defined():
    engine = network_engine(ragged_problem())
    update = PublicCode(kl_coef=0.0).update(engine, sampled(engine, 6))
    assert "expected_gain" not in update.metrics[0].values


def test_carry_clip_bounds_what_is_carried_but_not_the_update():
    engine, trajectories = three_turn_example()
    options = {"ratio_per_turn": False, "sample_deviation": False, "advantage_clip": None, "carry_total_clip": None}
    algorithm = PublicCode(normalize="none", clip=None, kl_coef=0.0, carry_clip=(0.2, 0.2), **options)
    update = algorithm.update(engine, trajectories)
    first, second = (trajectory.credit.turns for trajectory in update.trajectories)
    assert first[0].ratio == pytest.approx(1.5)
    assert [credit.carried_after for credit in first] == pytest.approx([1.2, 1.44, 1.728])
    assert second[0].carried_after == pytest.approx(-0.8)


def test_the_total_clip_bounds_the_product_when_it_is_used():
    carried = CarriedAdvantage(torch.tensor([2.0, -1.0, 0.0], dtype=F64))
    algorithm = PublicCode(carry_total_clip=(0.2, 0.2))
    rows = torch.arange(3)
    for factor in (1.2, 1.2):
        carried.absorb(rows, torch.full((3,), factor, dtype=F64).log())
    assert algorithm.weights(carried, rows, None).tolist() == pytest.approx([2.4, -1.2, 0.0])
    carried.absorb(rows, torch.full((3,), 0.8, dtype=F64).log())
    assert algorithm.weights(carried, rows, None).tolist() == pytest.approx(
        [2 * 1.152, -1.152, 0.0]
    )  # the product itself is kept
    carried.absorb(rows, torch.full((3,), 0.5, dtype=F64).log())
    assert algorithm.weights(carried, rows[:2], None).tolist() == pytest.approx([1.6, -0.8])


def test_shuffled_carry_has_the_distribution_of_m_but_not_its_assignment():
    engine = table_engine(ragged_problem(), GradientAscent(5.0))
    algorithm = ShuffledCarry(normalize="none", clip=None)
    updated = algorithm.update(engine, sampled(engine), generator=torch.Generator().manual_seed(0)).trajectories
    advantage = {trajectory.id: trajectory.credit.advantage for trajectory in updated}
    product = dict(advantage)  # M without shuffling
    moved = 0
    for t in (2, 1, 0):
        credits = {trajectory.id: credit_by_turn(trajectory) for trajectory in updated}
        pool = {name: by_turn[t] for name, by_turn in credits.items() if t in by_turn}
        for sign in (1, -1):
            names = [name for name in pool if advantage[name] * sign > 0]
            used = [pool[name].carried_before / advantage[name] for name in names]
            of_m = [product[name] / advantage[name] for name in names]
            assert sorted(used) == pytest.approx(sorted(of_m), rel=1e-12)
            moved += used != pytest.approx(of_m, rel=1e-12)
        for name, credit in pool.items():
            product[name] *= credit.ratio
            assert credit.carried_after == pytest.approx(product[name], rel=1e-12)
    assert moved >= 2


def test_shuffled_weights_permute_the_multipliers_within_each_sign():
    advantages = torch.tensor([1.0, 2.0, 4.0, 0.0, -1.0, -2.0, -4.0], dtype=F64)
    multipliers = torch.tensor([1.1, 1.2, 1.3, 7.0, 0.7, 0.8, 0.9], dtype=F64)
    carried = CarriedAdvantage(advantages)
    carried.absorb(torch.arange(7), multipliers.log())
    rows = torch.tensor([6, 1, 3, 0, 2, 5, 4])
    used = advantages[rows]
    orders = set()
    for seed in range(200):
        weights = ShuffledCarry().weights(carried, rows, torch.Generator().manual_seed(seed))
        shuffled = weights / used
        assert weights[2] == 0
        assert sorted(shuffled[used > 0].tolist()) == pytest.approx([1.1, 1.2, 1.3])
        assert sorted(shuffled[used < 0].tolist()) == pytest.approx([0.7, 0.8, 0.9])
        orders.add((tuple(shuffled[used > 0].argsort().tolist()), tuple(shuffled[used < 0].argsort().tolist())))
    assert len(orders) == 36  # all pairs of permutations
    assert carried.weights(torch.arange(7)).tolist() == pytest.approx((advantages * multipliers).tolist())


def test_carry_ratio_can_differ_from_the_ratio_of_the_objective():
    engine = table_engine(wordy_problem(), GradientAscent(5.0))
    update = OtherCarryRatio(ratio="length_normalized").update(engine, sampled(engine))
    for trajectory in update.trajectories:
        for credit in trajectory.credit.turns:
            factor = credit.carried_after / credit.carried_before
            assert factor == pytest.approx(credit.ratio ** len(credit.new_logprobs), rel=1e-9)


def test_drift_is_the_change_by_later_updates():
    engine = network_engine(ragged_problem(), GradientAscent(3.0))
    trajectories = sampled(engine)
    update = MeasuredDrift().update(engine, trajectories)
    for metrics in update.metrics[:-1]:
        squares = []
        for trajectory in update.trajectories:
            for credit in trajectory.credit.turns:
                if credit.turn == metrics.agent:
                    now = engine.logprobs([trajectory.turns[credit.turn]])[0]
                    squares.append(float((now - torch.tensor(credit.new_logprobs, dtype=F64)).mean()) ** 2)
        assert metrics.values["drift_rms"] == pytest.approx(math.sqrt(sum(squares) / len(squares)), abs=1e-12)
    assert update.metrics[0].values["drift_rms"] > 1e-3
    assert update.metrics[-2].values["drift_rms"] == 0  # the turn that was updated last


@pytest.mark.parametrize(("drift_every", "measured"), [(1, [0, 1, 2, 3]), (3, [0, 3])])
def test_drift_is_measured_every_few_iterations(drift_every, measured):
    engine, iterations = network_engine(ragged_problem()), []
    for engine.iteration in range(4):
        update = MeasuredDrift(drift_every=drift_every).update(engine, sampled(engine))
        iterations += [engine.iteration] * ("drift_rms" in update.metrics[0].values)
    assert iterations == measured
