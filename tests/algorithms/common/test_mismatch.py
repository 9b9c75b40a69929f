import math
from dataclasses import replace

import pytest
import torch

from engines.examples import engine, objective_for, trajectories, weights
from seeupo.algorithms import GRPO, GSPO, RLOO, SeeUPO
from seeupo.algorithms.common.behavior import behavior_logprobs, importance_metrics, importance_weights
from seeupo.config.process_settings import MismatchSettings
from seeupo.types import Behavior, Turn, turns_of


def sampled_by(local, batch, shift):
    """Return the trajectories with log-probs of a sampler that differ from the engine's by `shift` per token."""
    changed = []
    for trajectory in batch:
        rows = [row + torch.tensor([shift(turn, n) for n in range(len(row))])
                for turn, row in zip(trajectory.turns, local.logprobs(trajectory.turns), strict=True)]  # fmt: skip
        turns = [replace(t, behavior_logprobs=tuple(r.tolist())) for t, r in zip(trajectory.turns, rows, strict=True)]
        changed.append(replace(trajectory, turns=tuple(turns)))
    return changed


def test_weights_are_truncated_ratios():
    turn = Turn("x", 0, (1,), (2, 3), behavior_logprobs=(-1.5, -1.5))
    trained = {turn.key: torch.tensor([-1.0, -2.0])}

    def weight(**settings):
        return importance_weights([turn], trained, Behavior(**settings))[turn.key].tolist()

    assert weight(tis_cap=10.0) == pytest.approx([math.exp(0.5), math.exp(-0.5)])
    assert weight(tis_cap=1.2) == pytest.approx([1.2, math.exp(-0.5)])
    assert weight(tis_cap=10.0, tis_level="turn") == pytest.approx([1.0, 1.0])
    assert weight(turn_bounds=(0.9, 1.1)) == [1.0, 1.0]
    trained = {turn.key: torch.tensor([-1.0, -1.0])}
    assert weight(turn_bounds=(0.9, 1.1)) == [0.0, 0.0]


def test_weights_scale_the_gradient_of_each_token_and_keep_the_value():
    local = engine()
    turns = turns_of(trajectories())[:6]
    objective = objective_for(local, turns)
    generator = torch.Generator().manual_seed(0)
    factors = {turn.key: torch.rand(len(turn.action_ids), generator=generator).double() for turn in turns}
    longest = max(len(turn.action_ids) for turn in turns)
    logprobs = torch.randn(len(turns), longest, generator=generator, dtype=torch.float64, requires_grad=True)
    for row, turn in enumerate(turns):
        logprobs.data[row, len(turn.action_ids) :] = math.nan  # padding may hold anything
    plain = objective(logprobs, None, turns)
    (expected,) = torch.autograd.grad(plain.sum(), logprobs)
    weighted = replace(objective, importance=factors)(logprobs, None, turns)
    (gradient,) = torch.autograd.grad(weighted.sum(), logprobs)
    torch.testing.assert_close(weighted, plain)
    for row, turn in enumerate(turns):
        length = len(turn.action_ids)
        torch.testing.assert_close(gradient[row, :length], expected[row, :length] * factors[turn.key])
        assert not gradient[row, length:].any()


@pytest.mark.parametrize("algorithm", [SeeUPO(), GRPO(kl_coef=0.0)])
def test_corrections_are_off_by_default_and_change_nothing_without_a_gap(algorithm):
    ends = []
    for settings in (None, MismatchSettings(), MismatchSettings(tis_cap=2.0, turn_bounds=(0.5, 2.0))):
        local = engine()
        batch = sampled_by(local, trajectories(), lambda turn, n: 0.0)
        options = {} if settings is None else {"behavior": settings.behavior(recorded=False)}
        algorithm.update(local, batch, **options)
        ends.append(weights(local))
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", [SeeUPO(), GRPO(kl_coef=0.0)])
def test_every_step_of_an_algorithm_has_the_weights(algorithm):
    """Without weights there is no gradient, whatever the turn and the step."""
    local = engine(weight_decay=0.0)
    batch = sampled_by(local, trajectories(), lambda turn, n: 1.0)
    before = weights(local)
    update = replace(algorithm, epochs=2).update(local, batch, behavior=Behavior(turn_bounds=(0.8, 1.25)))
    assert torch.equal(weights(local), before)
    assert update.metrics[-1].values["masked_turns"] == 1.0
    assert update.metrics[-1].values["importance_weight"] == 0.0


def test_turns_outside_the_bounds_have_no_gradient():
    kept, masked = engine(weight_decay=0.0), engine(weight_decay=0.0)
    batch = sampled_by(masked, trajectories(), lambda turn, n: 1.0 if turn.index == 1 else 0.0)
    turns = turns_of(batch)
    objective = objective_for(kept, turns)
    factors = importance_weights(turns, objective.old, Behavior(turn_bounds=(0.8, 1.25)))
    masked.step(turns, replace(objective, importance=factors), normalizer=8)
    kept.step([turn for turn in turns if turn.index != 1], objective, normalizer=8)
    torch.testing.assert_close(weights(masked), weights(kept), rtol=0, atol=1e-9)
    assert importance_metrics(factors)["masked_turns"] == pytest.approx(8 / len(turns))


def test_ratios_are_relative_to_the_recorded_policy():
    local = engine()
    turns = turns_of(sampled_by(local, trajectories(), lambda turn, n: -0.1))
    behavior = Behavior(recorded=True, tis_cap=2.0)
    old = behavior_logprobs(local, turns, behavior)
    for turn in turns:
        assert old[turn.key].tolist() == pytest.approx(list(turn.behavior_logprobs), abs=1e-6)
    assert importance_weights(turns, old, behavior) == {}  # the difference is in the ratios


@pytest.mark.parametrize(
    "algorithm", [RLOO(), GSPO(level="trajectory", clip=None, minibatches=1)], ids=["rloo", "gspo"]
)
def test_the_first_ratio_of_a_trajectory_is_that_of_all_its_turns(algorithm):
    local = engine()
    batch = sampled_by(local, trajectories(), lambda turn, n: 0.05 * (1 + turn.index))
    expected = 0.0
    for trajectory, advantage in zip(batch, advantages_of(algorithm, batch), strict=True):
        log_ratio = sum(-0.05 * (1 + turn.index) * len(turn.action_ids) for turn in trajectory.turns)
        tokens = sum(len(turn.action_ids) for turn in trajectory.turns)
        expected += advantage * math.exp(log_ratio / (1 if isinstance(algorithm, RLOO) else tokens)) / len(batch)
    update = algorithm.update(local, batch, behavior=Behavior(recorded=True))
    assert update.metrics[-1].values["objective"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def advantages_of(algorithm, batch):
    update = algorithm.update(engine(), batch)
    by_id = {trajectory.id: trajectory.credit.advantage for trajectory in update.trajectories}
    return [by_id[trajectory.id] for trajectory in batch]


def test_turns_without_recorded_log_probs_are_refused():
    with pytest.raises(ValueError, match="no log-probs of a sampler"):
        GRPO().update(engine(reference=True), trajectories(), behavior=Behavior(tis_cap=2.0))


@pytest.mark.parametrize(
    "settings",
    [{"turn_bounds": (1.1, 2.0)}, {"tis_level": "batch"}, {"tis_cap": -1.0}, {"recorded_gap": 1e-3, "check_every": 0}],
)
def test_invalid_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        MismatchSettings(**settings)
