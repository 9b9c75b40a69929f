"""Trust-region steps on problems small enough to know J."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from algorithms.examples import (
    F64,
    SpyingEngine,
    network_engine,
    ragged_problem,
    sampled,
    table_engine,
    weights_of,
    wordy_problem,
)
from seeupo.algorithms import SeeUPO
from seeupo.algorithms.common import trust_region
from seeupo.algorithms.common.trust_region import TrustRegionSettings
from seeupo.config.loader import read_recipe, recipe_from_table, recipe_to_table
from seeupo.errors import ConfigError
from studies.exact import ExactEngine, GradientAscent, TablePolicy
from studies.exact.problem import bandit

LIMIT = TrustRegionSettings(kl=0.02, backtracks=10)


def by_turn(update) -> dict:
    return {metrics.agent: metrics.values for metrics in update.metrics}


def mean_kl(engine, old, turns) -> float:
    """The k3 estimate of KL(old || current), summed over tokens and averaged over turns, written out."""
    total = 0.0
    for turn, new in zip(turns, engine.logprobs(turns), strict=True):
        log_q = new - old[turn.key]
        total += float((log_q.exp() - 1 - log_q).sum())
    return total / len(turns)


@pytest.mark.parametrize("make_engine", [table_engine, network_engine])
def test_the_plain_step_violates_the_kl_limit_and_the_guarded_one_does_not(make_engine):
    results = {}
    for region in (None, LIMIT):
        engine = make_engine(ragged_problem(), GradientAscent(20.0))
        trajectories = sampled(engine)
        first = [t.turns[0] for t in trajectories]
        old = {turn.key: row for turn, row in zip(first, engine.logprobs(first), strict=True)}
        update = SeeUPO(trust_region=region).update(engine, trajectories)
        results[region] = mean_kl(engine, old, first)  # of the turn that is updated last
        if region is not None:
            assert by_turn(update)[0]["pool_kl"] == pytest.approx(results[region], rel=1e-9)
            assert all(by_turn(update)[turn]["surrogate_gain"] >= 0 for turn in range(3))
    assert results[LIMIT] <= LIMIT.kl < results[None]


def test_the_kept_step_is_a_fraction_of_the_plain_one_and_the_largest_that_fits():
    engines = [table_engine(ragged_problem(), GradientAscent(20.0)) for _ in range(2)]
    start = weights_of(engines[0]).clone()
    one_turn = [replace(t, turns=t.turns[:1]) for t in sampled(engines[0])]
    SeeUPO().update(engines[0], one_turn)
    update = SeeUPO(trust_region=LIMIT).update(engines[1], one_turn)
    plain, kept = (weights_of(engine) - start for engine in engines)
    scale = by_turn(update)[0]["step_scale"]
    assert scale < 1
    assert math.log2(scale).is_integer()
    torch.testing.assert_close(kept, scale * plain, rtol=1e-9, atol=1e-12)
    turns = [t.turns[0] for t in one_turn]
    fresh = table_engine(ragged_problem())
    old = {turn.key: row for turn, row in zip(turns, fresh.logprobs(turns), strict=True)}
    with torch.no_grad():
        fresh.policy.logits += (2 * scale * plain).view_as(fresh.policy.logits)
    assert mean_kl(fresh, old, turns) > LIMIT.kl


def test_turns_of_equal_rewards_count_in_the_kl():
    engine = SpyingEngine(network_engine(ragged_problem(), GradientAscent(5.0)))
    trajectories = [replace(t, reward=1.0) if t.group == "0" else t for t in sampled(engine)]
    first = [t.turns[0] for t in trajectories]
    old = {turn.key: row for turn, row in zip(first, engine.logprobs(first), strict=True)}
    update = SeeUPO(trust_region=TrustRegionSettings(kl=10.0)).update(engine, trajectories)
    assert by_turn(update)[0]["pool_kl"] == pytest.approx(mean_kl(engine, old, first), rel=1e-9)
    dead = {t.id for t in trajectories if t.group == "0"}
    stepped = {turn.trajectory for kind, turns in engine.calls if kind == "step" for turn in turns}
    assert not stepped & dead


def test_the_kl_is_summed_over_the_tokens_of_a_turn():
    engine = table_engine(wordy_problem(), GradientAscent(5.0))
    trajectories = sampled(engine)
    first = [t.turns[0] for t in trajectories]
    old = {turn.key: row for turn, row in zip(first, engine.logprobs(first), strict=True)}
    update = SeeUPO(trust_region=TrustRegionSettings(kl=10.0)).update(engine, trajectories)
    assert by_turn(update)[0]["pool_kl"] == pytest.approx(mean_kl(engine, old, first), rel=1e-9)


def test_a_turn_that_others_have_moved_beyond_the_limit_is_skipped():
    region = TrustRegionSettings(kl=1e-3, backtracks=20)
    engine = SpyingEngine(network_engine(ragged_problem(), GradientAscent(5.0)))
    trajectories = sampled(engine)
    old = {turn.key: row for t in trajectories for turn, row in zip(t.turns, engine.logprobs(t.turns), strict=True)}
    update = SeeUPO(trust_region=region, ratio="product", order="natural").update(engine, trajectories)
    metrics = by_turn(update)
    skipped = [turn for turn in range(3) if turn not in engine.agents]
    assert skipped == [1]
    assert metrics[None]["skipped_turns"] == len(skipped)
    assert metrics[None]["turns_updated"] == 3 - len(skipped)
    for turn in skipped:
        assert metrics[turn]["pool_kl"] > region.kl
        assert metrics[turn]["step_scale"] == metrics[turn]["surrogate_gain"] == 0
        # M is multiplied by the ratio to theta_k that the other turns' steps gave it.
        for trajectory in update.trajectories:
            for credit in trajectory.credit.turns:
                if credit.turn == turn:
                    change = torch.tensor(credit.new_logprobs, dtype=F64) - old[trajectory.id, turn]
                    assert credit.carried_after == pytest.approx(credit.carried_before * float(change.sum().exp()))
                    assert credit.carried_after != credit.carried_before


def test_steps_without_an_acceptable_fraction_are_undone():
    engine = network_engine(ragged_problem(), GradientAscent(1e4))
    before = weights_of(engine).clone()
    region = TrustRegionSettings(kl=1e-6, backtracks=1)
    update = SeeUPO(trust_region=region).update(engine, sampled(engine))
    assert torch.equal(weights_of(engine), before)
    metrics = by_turn(update)
    assert metrics[None]["undone_turns"] == 3
    assert metrics[None]["skipped_turns"] == metrics[None]["turns_updated"] == 0
    assert metrics[None]["optimizer_steps"] == 3
    assert all(metrics[turn]["ratio_max"] == 1 for turn in range(3))


# --- Monotonic improvement --------------------------------------------------------------------------------------------
#
# Two turns of two tokens and one distribution per turn, for both tokens: separate parameters per turn, as the theorem
# needs, but a large step can go past the best mixture of tokens.


@cache
def change_of_j(seed: int, region: TrustRegionSettings | None) -> float:
    """Return the change of J by one update with exact gradients in a random problem."""
    generator = torch.Generator().manual_seed(seed)
    problem = bandit(torch.rand(1, 4, 4, generator=generator, dtype=F64), tokens_per_turn=2)
    turn = torch.arange(2).view(1, 2, 1).expand_as(problem.nodes)
    rows = torch.zeros(problem.num_nodes, dtype=torch.long).index_put((problem.nodes,), turn)
    policy = TablePolicy(torch.randn(2, 2, generator=generator, dtype=F64), rows)
    engine = ExactEngine(problem, policy, GradientAscent(30.0))
    normalize = ("none", "batch")[seed % 2]
    algorithm = SeeUPO(ratio="product", normalize=normalize, clip=None, trust_region=region)
    before = engine.expected_return()
    algorithm.update(engine, engine.enumerate())
    return engine.expected_return() - before


def falls_of_the_plain_step() -> list[int]:
    return [seed for seed in range(200) if change_of_j(seed, None) < -1e-3]


WIDE = TrustRegionSettings(kl=100.0)
"""A limit that no step reaches: only the surrogate guards J."""


def test_j_never_falls_with_exact_gradients():
    falls = falls_of_the_plain_step()
    assert len(falls) >= 10
    assert {seed % 2 for seed in falls} == {0, 1}
    changes = [change_of_j(seed, WIDE) for seed in range(200)]
    assert min(changes) > -1e-12
    assert sum(change > 1e-6 for change in changes) > 150
    assert min(change_of_j(seed, TrustRegionSettings()) for seed in falls) > -1e-12


def test_j_falls_if_the_surrogate_is_not_compared(monkeypatch):
    monkeypatch.setattr(trust_region, "surrogate_gain", lambda *_: 0.0)
    assert min(change_of_j.__wrapped__(seed, WIDE) for seed in falls_of_the_plain_step()) < -1e-3


# --- Options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl": 0.0}, "kl = 0.0: expected a number > 0"),
        ({"kl": -1.0}, "kl = -1.0: expected a number > 0"),
        ({"kl": math.nan}, "kl = nan"),
        ({"backtracks": -1}, "backtracks = -1: expected an integer >= 0"),
        ({"backtracks": 1.5}, "backtracks = 1.5: expected an integer"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        TrustRegionSettings(**options)


def test_a_recipe_sets_the_trust_region():
    for key, value in (("algorithm.trust_region.kl", "0.02"), ("algorithm.trust_region", "{kl = 0.02}")):
        recipe = read_recipe("tiny-pocket", [(key, value)])
        assert recipe.algorithm.options["trust_region"] == {"kl": 0.02, "backtracks": 6}
        assert recipe_from_table(recipe_to_table(recipe)) == recipe
    assert read_recipe("tiny-pocket").algorithm.options["trust_region"] is None
    with pytest.raises(ConfigError, match=r"algorithm\.trust_region\.kl = 0: expected a number > 0"):
        read_recipe("tiny-pocket", [("algorithm.trust_region.kl", "0")])


def test_an_engine_that_cannot_shrink_its_steps_is_rejected():
    engine = table_engine(ragged_problem())
    engine.capabilities = frozenset()
    with pytest.raises(TypeError, match='ExactEngine lacks the capability "shrink", which a trust region needs'):
        SeeUPO(trust_region=LIMIT).update(engine, sampled(engine))
