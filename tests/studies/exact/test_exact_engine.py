import torch

from algorithms.examples import F64, network_engine, ragged_problem, table_engine, wordy_problem
from seeupo.algorithms import SeeUPO
from seeupo.types import turns_of
from studies.exact import GradientAscent


def test_enumerated_trajectories_carry_their_probabilities():
    engine = table_engine(ragged_problem())
    trajectories = engine.enumerate()
    assert abs(sum(t.multiplicity for t in trajectories) - 1) < 1e-12
    expected = sum(t.multiplicity * t.reward for t in trajectories)
    assert abs(expected - engine.expected_return()) < 1e-12
    assert [len(t.turns) for t in trajectories] == [1, 2, 3, 3, 1, 2, 3, 3]


def test_paths_of_probability_zero_are_omitted():
    engine = table_engine(ragged_problem())
    with torch.no_grad():
        engine.policy.logits[engine.problem.nodes[0, 0, 0]] = torch.tensor([0.0, -torch.inf], dtype=F64)
    assert [t.id for t in engine.enumerate() if t.group == "0"] == ["0"]


def test_sampled_counts_follow_the_probabilities():
    engine = table_engine(ragged_problem())
    drawn = engine.sample(20_000, torch.Generator().manual_seed(0))
    probability = {t.id: t.multiplicity for t in engine.enumerate()}
    for trajectory in drawn:
        expected = 40_000 * probability[trajectory.id]
        assert abs(trajectory.multiplicity - expected) < 5 * expected**0.5
    assert sum(t.multiplicity for t in drawn if t.group == "1") == 20_000


def test_log_probs_of_an_action_multiply_to_its_probability():
    engine = network_engine(wordy_problem())
    trajectories = engine.enumerate()
    rows = iter(engine.logprobs(turns_of(trajectories)))
    for trajectory in trajectories:
        total = sum(float(next(rows).sum()) for _ in trajectory.turns)
        assert abs(torch.tensor(total).exp() / 2 - trajectory.multiplicity) < 1e-6


def test_reference_is_the_start_policy():
    engine = network_engine(ragged_problem(), GradientAscent(3.0))
    trajectories = engine.enumerate()
    turns = turns_of(trajectories)
    before = torch.cat(engine.logprobs(turns))
    SeeUPO().update(engine, trajectories)
    assert torch.equal(torch.cat(engine.logprobs(turns, policy="reference")), before)
    assert not torch.equal(torch.cat(engine.logprobs(turns)), before)
