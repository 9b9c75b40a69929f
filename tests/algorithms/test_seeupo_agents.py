"""SeeUPO with virtual agents of several turns."""

import math
from dataclasses import replace

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
from engines.examples import engine as local_engine
from engines.examples import trajectories as local_trajectories
from engines.examples import weights as local_weights
from seeupo.algorithms import GSPO, RLOO, SeeUPO
from seeupo.algorithms.common.batch import Batch, logprobs_by_key
from seeupo.algorithms.common.objective import SequenceObjective
from seeupo.core.carry import CarriedAdvantage
from seeupo.core.ratios import sequence_log_ratio
from seeupo.types import turns_of
from studies.exact import ExactEngine, GradientAscent, TablePolicy
from studies.exact.problem import bandit

# --- One turn per agent -----------------------------------------------------------------------------------------------


def sweep_by_turns(engine, trajectories, *, clip, kl_coef, epochs) -> None:
    """Algorithm 1 with one agent per turn, with one ratio per turn, written out."""
    batch = Batch(trajectories)
    carried = CarriedAdvantage(batch.advantages("batch", "mean"))
    turns = turns_of(trajectories)
    old = logprobs_by_key(engine, turns)
    reference = logprobs_by_key(engine, turns, "reference") if kl_coef else {}
    for t in reversed(range(len(batch.pools))):
        pool = batch.pools[t]
        members = batch.members(pool)
        weights = dict(zip((turn.key for turn in pool), carried.weights(members).tolist(), strict=True))
        objective = SequenceObjective(
            old=old,
            advantages=weights,
            multiplicities=batch.multiplicities,
            clip=clip,
            reference=reference,
            kl_coef=kl_coef,
        )
        for _ in range(epochs):
            engine.step(pool, objective, normalizer=float(len(trajectories)), agent=t)
        new = engine.logprobs(pool)
        ratios = [sequence_log_ratio(row[None].double(), old[turn.key][None].double(), torch.ones(1, len(row)).bool())
                  for turn, row in zip(pool, new, strict=True)]  # fmt: skip
        carried.absorb(members, torch.cat(ratios))


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_one_turn_per_agent_is_algorithm_1_bit_for_bit(dtype, kl_coef):
    options = {"clip": (0.02, 0.02), "kl_coef": kl_coef, "epochs": 2}
    engines = [local_engine(dtype=dtype, reference=True) for _ in range(2)]
    trajectories = local_trajectories(3)
    SeeUPO(turns_per_agent=1, **options).update(engines[0], trajectories)
    sweep_by_turns(engines[1], trajectories, **options)
    assert torch.equal(*map(local_weights, engines))
    assert not torch.equal(local_weights(engines[0]), local_weights(local_engine(dtype=dtype)))


def test_one_turn_per_agent_computes_nothing_more():
    engine = SpyingEngine(network_engine(ragged_problem()))
    SeeUPO(epochs=2).update(engine, sampled(engine))
    assert [kind for kind, _ in engine.calls] == ["current", *["step", "step", "current"] * 3]


# --- All turns in one agent -------------------------------------------------------------------------------------------


def assert_same_update(problem, ours, theirs, **engine_options) -> None:
    engines = [network_engine(problem, GradientAscent(3.0), **engine_options) for _ in range(2)]
    start = weights_of(engines[0]).clone()
    trajectories = sampled(engines[0])
    updates = [
        algorithm.update(engine, trajectories) for algorithm, engine in zip((ours, theirs), engines, strict=True)
    ]
    torch.testing.assert_close(weights_of(engines[0]), weights_of(engines[1]), rtol=1e-12, atol=1e-13)
    assert (weights_of(engines[0]) - start).abs().max() > 0.01
    clipped = [
        [turn.clipped for t in update.trajectories for turn in sorted(t.credit.turns, key=lambda credit: credit.turn)]
        for update in updates
    ]
    assert clipped[0] == clipped[1]
    assert any(clipped[0]) == (ours.clip is not None)


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("normalize", ["group", "batch", "none"])
@pytest.mark.parametrize("make_problem", [ragged_problem, wordy_problem])
def test_all_turns_in_one_agent_is_gspo(make_problem, normalize, kl_coef):
    options = {"clip": (0.01, 0.02), "normalize": normalize, "epochs": 3, "kl_coef": kl_coef}
    assert_same_update(make_problem(), SeeUPO(turns_per_agent=3, **options), GSPO(minibatches=1, **options))


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("make_problem", [ragged_problem, wordy_problem])
def test_all_turns_in_one_agent_is_rloo(make_problem, epochs):
    ours = SeeUPO(
        turns_per_agent=3, ratio="product", baseline="leave_one_out", normalize="none", clip=None, epochs=epochs
    )
    assert_same_update(make_problem(), ours, RLOO(epochs=epochs))


def test_all_turns_in_one_agent_costs_one_pass_more_than_a_step():
    engine = SpyingEngine(network_engine(ragged_problem()))
    SeeUPO(turns_per_agent=3).update(engine, sampled(engine))
    assert [kind for kind, _ in engine.calls] == ["current", "step", "current"]
    assert engine.agents == [0]


# --- Agents in between ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", ["product", "length_normalized"])
@pytest.mark.parametrize("make_engine", [table_engine, network_engine])
def test_two_turns_per_agent_against_automatic_differentiation(make_engine, ratio):
    """Turns 0 and 1 are agent 0, turn 2 is agent 1; the network is shared, so that each step moves all turns."""
    problem = bandit(torch.rand(2, 4, 4, 4, generator=torch.Generator().manual_seed(3), dtype=F64), tokens_per_turn=2)
    rate, clip = 4.0, (0.1, 0.1)
    engine = make_engine(problem, GradientAscent(rate))
    restated = make_engine(problem, GradientAscent(rate))
    trajectories = sampled(engine)
    update = SeeUPO(turns_per_agent=2, ratio=ratio, normalize="none", clip=clip).update(engine, trajectories)

    paths = torch.tensor([int(t.id.split(".")[0]) for t in trajectories])
    rewards = torch.tensor([t.reward for t in trajectories], dtype=F64)
    groups = torch.tensor([int(t.group) for t in trajectories])
    m = torch.stack([reward - rewards[groups == group].mean() for reward, group in zip(rewards, groups, strict=True)])

    def logprobs(turns):
        log_policy = restated.policy.log_probs()
        return log_policy[problem.nodes[paths][:, turns], problem.tokens[paths][:, turns]].flatten(1)

    agents = {1: [2], 0: [0, 1]}
    old = {agent: logprobs(turns).detach() for agent, turns in agents.items()}
    for agent, turns in agents.items():

        def log_ratio(agent=agent, turns=turns):
            change = logprobs(turns) - old[agent]
            return change.sum(1) if ratio == "product" else change.mean(1)

        r = log_ratio().exp()
        value = torch.minimum(r * m, r.clamp(1 - clip[0], 1 + clip[1]) * m).mean()
        parameters = list(restated.policy.parameters().values())
        for parameter, gradient in zip(parameters, torch.autograd.grad(value, parameters), strict=True):
            with torch.no_grad():
                parameter.add_(gradient, alpha=rate)
        m = (m * log_ratio().exp()).detach()
    torch.testing.assert_close(weights_of(engine), weights_of(restated), rtol=1e-9, atol=1e-12)
    assert [credit.turn for credit in update.trajectories[0].credit.turns] == [2, 0, 1]
    for trajectory, carried in zip(update.trajectories, m.tolist(), strict=True):
        for credit in trajectory.credit.turns[1:]:
            assert credit.carried_after == pytest.approx(carried, rel=1e-9)
    assert [metrics.agent for metrics in update.metrics] == [1, 0, None]
    assert update.metrics[1].values["used_turns"] == 2 * len(trajectories)


def test_a_trajectory_that_ends_within_an_agent_has_a_shorter_action():
    engine = table_engine(ragged_problem(), GradientAscent(5.0))
    update = SeeUPO(turns_per_agent=2, ratio="product").update(engine, sampled(engine))
    lengths = {len(t.turns) for t in update.trajectories}
    assert lengths == {1, 2, 3}
    for trajectory in update.trajectories:
        assert len(trajectory.credit.turns) == len(trajectory.turns)
        ratios = {credit.turn // 2: credit.ratio for credit in trajectory.credit.turns}
        final = trajectory.credit.turns[-1].carried_after
        assert final == pytest.approx(trajectory.credit.advantage * math.prod(ratios.values()), rel=1e-9)


def test_mini_batches_of_agents_keep_trajectories_whole():
    engine = SpyingEngine(network_engine(wordy_problem()))
    trajectories = sampled(engine)
    generator = torch.Generator().manual_seed(0)
    SeeUPO(turns_per_agent=2, steps_per_turn=4).update(engine, trajectories, generator=generator)
    steps = [turns for kind, turns in engine.calls if kind == "step"]
    assert len(steps) == 4
    for turns in steps:
        assert {turn.key for turn in turns} == {(turn.trajectory, index) for turn in turns for index in range(2)}


def test_larger_agents_learn_more_slowly():
    """J after 1 and 5 iterations at two learning rates: one rewarded path of four turns, exact gradients."""
    expected = {
        1: [0.110, 0.792, 0.536, 0.986],
        2: [0.106, 0.762, 0.428, 0.982],
        4: [0.100, 0.695, 0.286, 0.973],
    }
    rewards = torch.zeros(1, 2, 2, 2, 2, dtype=F64)
    rewards[0, 0, 0, 0, 0] = 1
    problem = bandit(rewards)
    for turns_per_agent, figures in expected.items():
        results = []
        for rate in (4.0, 16.0):
            policy = TablePolicy(torch.zeros(problem.num_nodes, 2, dtype=F64))
            engine = ExactEngine(problem, policy, GradientAscent(rate))
            assert engine.expected_return() == pytest.approx(0.0625)
            algorithm = SeeUPO(turns_per_agent=turns_per_agent, ratio="product", normalize="none")
            for iteration in range(1, 6):
                algorithm.update(engine, engine.enumerate())
                if iteration in (1, 5):
                    results.append(engine.expected_return())
        assert figures == pytest.approx(results, abs=5e-4)


def test_invalid_numbers_of_turns_are_rejected():
    for value in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"turns_per_agent = {value}: expected an integer"):
            SeeUPO(turns_per_agent=value)
    assert replace(SeeUPO(), turns_per_agent=100).turns_per_agent == 100
