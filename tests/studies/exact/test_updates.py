import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.examples import network_engine, ragged_problem, table_engine, weights_of, wordy_problem
from seeupo.algorithms import SeeUPO
from seeupo.algorithms.common.batch import logprobs_by_key
from seeupo.algorithms.common.objective import SequenceObjective
from studies.exact import ExactEngine, GradientAscent, Maximizer, TablePolicy, TrustRegion
from studies.exact.problem import bandit

F64 = torch.float64


def one_state(old: torch.Tensor, weights: torch.Tensor, clip, rule) -> tuple[torch.Tensor, callable]:
    """Update one distribution with a weight per action; return it and the objective as a function of probabilities."""
    problem = bandit(torch.zeros(1, len(old), dtype=F64))
    engine = ExactEngine(problem, TablePolicy(old.log()[None]), rule)
    trajectories = engine.enumerate()
    turns = [trajectory.turns[0] for trajectory in trajectories]
    objective = SequenceObjective(
        old=logprobs_by_key(engine, turns),
        advantages={turn.key: float(weights[turn.action_ids[0]]) for turn in turns},
        multiplicities={trajectory.id: trajectory.multiplicity for trajectory in trajectories},
        ratio="product",
        clip=clip,
    )
    engine.step(turns, objective, normalizer=1.0)

    def value(probs: torch.Tensor) -> float:
        ratio = probs / old
        clipped = ratio.clamp(1 - clip[0], 1 + clip[1]) if clip else ratio
        return float((old * torch.minimum(ratio * weights, clipped * weights)).sum())

    return engine.log_policy()[0].exp(), value


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([None, (0.2, 0.2), (0.1, 0.5)]), st.sampled_from([1.0, 0.1]))
def test_maximizer_is_optimal(seed, clip, radius):
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(4, generator=generator, dtype=F64).softmax(0)
    weights = torch.randn(4, generator=generator, dtype=F64)
    kinks = (1 - clip[0], 1 + clip[1]) if clip else ()
    best, value = one_state(old, weights, clip, Maximizer(kinks, radius))
    assert float(best.sum()) == pytest.approx(1)
    assert (best >= 0).all()
    assert ((best - old).abs() <= radius + 1e-12).all()
    # Compare with nearby distributions, by moving probability between two actions, and with random distant ones.
    for giver in range(4):
        for taker in range(4):
            for size in (1e-4, 1e-2):
                other = best.clone()
                other[giver] -= size
                other[taker] += size
                if (other >= 0).all() and ((other - old).abs() <= radius).all():
                    assert value(other) <= value(best) + 1e-12
    for _ in range(50):
        target = (3 * torch.randn(4, generator=generator, dtype=F64)).softmax(0)
        step = min(1.0, radius / float((target - old).abs().max()))
        assert value(old + step * (target - old)) <= value(best) + 1e-12


def test_unclipped_maximizer_takes_the_best_action():
    best, _ = one_state(
        torch.tensor([0.5, 0.3, 0.2], dtype=F64), torch.tensor([0.1, 0.9, -2.0], dtype=F64), None, Maximizer()
    )
    assert best.tolist() == [0.0, 1.0, 0.0]


def test_clipped_maximizer_matches_hand_calculation():
    # The good action is worth more up to 1.2 * 0.5 = 0.6; the bad one costs nothing below 0.8 * 0.5 = 0.4.
    best, _ = one_state(
        torch.tensor([0.5, 0.5], dtype=F64), torch.tensor([1.0, -1.0], dtype=F64), (0.2, 0.2), Maximizer((0.8, 1.2))
    )
    torch.testing.assert_close(best, torch.tensor([0.6, 0.4], dtype=F64))


def test_flat_objective_leaves_the_policy_unchanged():
    old = torch.tensor([0.2, 0.5, 0.3], dtype=F64)
    best, _ = one_state(old, torch.zeros(3, dtype=F64), (0.2, 0.2), Maximizer((0.8, 1.2)))
    torch.testing.assert_close(best, old)


def test_impossible_action_stays_impossible():
    best, _ = one_state(
        torch.tensor([0.0, 0.4, 0.6], dtype=F64), torch.tensor([9.0, -1.0, -2.0], dtype=F64), None, Maximizer()
    )
    assert best.tolist() == [0.0, 1.0, 0.0]


def test_maximizer_rejects_unsupported_objectives_and_policies():
    old, weights = torch.tensor([0.5, 0.5], dtype=F64), torch.tensor([1.0, -1.0], dtype=F64)
    with pytest.raises(ValueError, match="not linear between its kinks"):
        one_state(old, weights, (0.2, 0.2), Maximizer((0.7, 1.1)))
    for engine, algorithm, message in [
        (table_engine(wordy_problem(), Maximizer()), SeeUPO(clip=None), "one-token actions; these have up to 2"),
        (network_engine(ragged_problem(), Maximizer()), SeeUPO(clip=None), "needs a TablePolicy, not a NetworkPolicy"),
        (table_engine(ragged_problem(), Maximizer((0.8, 1.2))), SeeUPO(entropy_coef=0.1), "not linear"),
    ]:
        with pytest.raises(ValueError, match=message):
            algorithm.update(engine, engine.enumerate())


def test_soft_maximizer_keeps_every_probability_above_the_floor():
    old, weights = torch.tensor([0.5, 0.3, 0.2], dtype=F64), torch.tensor([0.1, 0.9, -2.0], dtype=F64)
    best, _ = one_state(old, weights, None, Maximizer(floor=0.01))
    torch.testing.assert_close(best, torch.tensor([0.01, 0.98, 0.01], dtype=F64))
    near, _ = one_state(old, weights, None, Maximizer(radius=0.1, floor=0.15))
    torch.testing.assert_close(near, torch.tensor([0.45, 0.4, 0.15], dtype=F64))


def test_gradient_ascent_adds_the_gradient():
    old, weights = torch.tensor([0.7, 0.3], dtype=F64), torch.tensor([2.0, -1.0], dtype=F64)
    new, _ = one_state(old, weights, None, GradientAscent(0.5))
    # d/dlogit_a of sum_b p_b w_b is p_a (w_a - mean w).
    logits = old.log() + 0.5 * old * (weights - old @ weights)
    torch.testing.assert_close(new, logits.softmax(0))


@pytest.mark.parametrize("make_engine", [table_engine, network_engine])
def test_trust_region_step_improves_within_the_region_and_follows_the_natural_gradient(make_engine):
    max_kl = 1e-4
    engine = make_engine(ragged_problem(), TrustRegion(max_kl))
    trajectories = engine.enumerate()
    before, returned = engine.log_policy(), engine.expected_return()
    # Update one pool alone to inspect the region and the step.
    first_turns = [trajectory.turns[0] for trajectory in trajectories]
    advantage = {t.turns[0].key: t.reward - returned for t in trajectories}
    objective = SequenceObjective(
        old=logprobs_by_key(engine, first_turns),
        advantages=advantage,
        multiplicities={t.id: t.multiplicity for t in trajectories},
        clip=None,
    )
    metrics = engine.step(first_turns, objective, normalizer=1.0, agent=0)
    assert metrics.values["step_fraction"] > 0
    assert engine.expected_return() > returned
    nodes = sorted({turn.prompt_ids[0] for turn in first_turns})
    after = engine.log_policy()
    kl = float((before[nodes].exp() * (before[nodes] - after[nodes])).sum(1).mean())
    assert 0.5 * max_kl < kl <= max_kl * 1.001
    if make_engine is table_engine:
        # For a table the natural gradient moves log-probs in proportion to the advantage of each action at its node.
        value, action_value = engine.problem.value_at_nodes(before)
        moved = (after - before)[nodes]
        moved = moved - (before[nodes].exp() * moved).sum(1, keepdim=True)
        natural = (action_value - value[:, None])[nodes]
        cosine = torch.cosine_similarity(moved.flatten(), natural.flatten(), dim=0)
        assert cosine > 0.999


def test_trust_region_step_without_gradient_keeps_the_policy():
    engine = table_engine(ragged_problem(), TrustRegion(0.1))
    before = weights_of(engine).clone()
    turns = [trajectory.turns[0] for trajectory in engine.enumerate()]
    objective = SequenceObjective(
        old=logprobs_by_key(engine, turns),
        advantages=dict.fromkeys([turn.key for turn in turns], 0.0),
        multiplicities={turn.trajectory: 1.0 for turn in turns},
    )
    assert engine.step(turns, objective, normalizer=1.0).values["step_fraction"] == 0
    assert torch.equal(weights_of(engine), before)
    with pytest.raises(ValueError, match="max_kl = nan"):
        TrustRegion(math.nan)
