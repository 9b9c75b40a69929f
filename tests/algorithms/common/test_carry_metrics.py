"""The expected gain of a turn's update against the exact change of J."""

import math
from dataclasses import replace

import pytest
import torch

from algorithms.examples import F64, network_engine, ragged_problem, sampled, table_engine, wordy_problem
from seeupo.algorithms import SeeUPO
from studies.exact import GradientAscent
from studies.exact.problem import tree


def gains(update) -> dict:
    return {metrics.agent: metrics.values["expected_gain"] for metrics in update.metrics}


def changes_of_j(problem, old, new) -> dict:
    """Return the change of J by each turn's update in reverse order, for log-probs [nodes, V] without sharing."""
    gains_by_turn, current = {}, old.clone()
    for t in reversed(range(problem.num_turns)):
        before = float(problem.expected_return(current))
        nodes = problem.nodes[:, t]
        nodes = nodes[nodes >= 0].unique()
        current[nodes] = new[nodes]
        gains_by_turn[t] = float(problem.expected_return(current)) - before
    return gains_by_turn


@pytest.mark.parametrize("normalize", ["none", "batch"])
@pytest.mark.parametrize("make_problem", [ragged_problem, wordy_problem])
def test_on_enumerated_trajectories_it_is_the_change_of_j(make_problem, normalize):
    engine = table_engine(make_problem(), GradientAscent(3.0))
    old, before = engine.log_policy(), engine.expected_return()
    update = SeeUPO(ratio="product", normalize=normalize).update(engine, engine.enumerate())
    expected = changes_of_j(engine.problem, old, engine.log_policy())
    measured = gains(update)
    assert measured.pop(None) == pytest.approx(engine.expected_return() - before, abs=1e-12)
    assert measured == pytest.approx(expected, abs=1e-12)
    assert all(change > 1e-3 for change in expected.values())


def test_it_is_the_change_of_j_for_agents_of_several_turns():
    engine = table_engine(ragged_problem(), GradientAscent(3.0))
    before = engine.expected_return()
    update = SeeUPO(turns_per_agent=2, ratio="product", normalize="none").update(engine, engine.enumerate())
    assert gains(update)[None] == pytest.approx(engine.expected_return() - before, abs=1e-12)
    assert [metrics.agent for metrics in update.metrics] == [1, 0, None]


@pytest.mark.parametrize(("baseline", "factor"), [("leave_one_out", 1.0), ("mean", 0.5)])
def test_its_expectation_on_fresh_groups_is_the_change_of_j(baseline, factor):
    """All groups of two, by enumeration; the policy after the update does not depend on them."""
    paths = [(0,), (1, 0), (1, 1, 0), (1, 1, 1)]
    problem = tree([(0, path, reward) for path, reward in zip(paths, (0.3, 0.9, 0.1, 0.6), strict=True)], num_tokens=2)
    target = torch.randn(3, 2, generator=torch.Generator().manual_seed(9), dtype=F64)
    turn_of = {int(node): t for t in range(3) for node in problem.nodes[:, t].flatten() if node >= 0}

    def move(policy, pool):
        turn = turn_of[int(pool.nodes[0, 0])]
        nodes = [node for node, t in turn_of.items() if t == turn]
        with torch.no_grad():
            policy.logits[nodes] = target[nodes]
        return {}

    engine = table_engine(problem, move)
    start, old, every = engine.policy.logits.detach().clone(), engine.log_policy(), engine.enumerate()
    expected = dict.fromkeys(range(3), 0.0)
    for one in every:
        for two in every:
            with torch.no_grad():
                engine.policy.logits.copy_(start)
            group = [
                replace(
                    path, id=name, multiplicity=1.0, turns=tuple(replace(turn, trajectory=name) for turn in path.turns)
                )
                for name, path in (("one", one), ("two", two))
            ]
            algorithm = SeeUPO(ratio="product", normalize="none", baseline=baseline, clip=None)
            for turn, gain in gains(algorithm.update(engine, group)).items():
                if turn is not None:
                    expected[turn] += one.multiplicity * two.multiplicity * gain
    exact = changes_of_j(problem, old, target.log_softmax(1))
    assert expected == pytest.approx({turn: factor * change for turn, change in exact.items()}, abs=1e-12)
    assert max(abs(change) for change in exact.values()) > 0.01


def test_its_standard_error_is_over_tasks():
    engine = network_engine(ragged_problem(), GradientAscent(3.0))
    trajectories = [replace(t, task=f"{t.group}{int(t.id.split('.')[1]) % 2}") for t in sampled(engine)]
    old = {t.id: float(engine.logprobs([t.turns[0]])[0].sum()) for t in trajectories}
    update = SeeUPO(normalize="none", clip=None).update(engine, trajectories)
    per_task: dict = {}
    for trajectory in update.trajectories:
        credit = next((each for each in trajectory.credit.turns if each.turn == 0), None)
        ratio = 1.0 if credit is None else math.exp(sum(credit.new_logprobs) - old[trajectory.id])
        gain = 0.0 if credit is None else (ratio - 1) * credit.carried_before
        per_task.setdefault(trajectory.task, []).append(gain)
    assert len(per_task) == 4
    mean = sum(map(sum, per_task.values())) / len(trajectories)
    squares = sum(sum(gain - mean for gain in values) ** 2 for values in per_task.values())
    turn_values = {metrics.agent: metrics.values for metrics in update.metrics}[0]
    assert turn_values["expected_gain"] == pytest.approx(mean, rel=1e-9)
    assert turn_values["expected_gain_se"] == pytest.approx(math.sqrt(4 / 3 * squares) / len(trajectories), rel=1e-9)


def test_it_needs_one_scale_and_its_error_several_tasks():
    engine = table_engine(ragged_problem())
    trajectories = sampled(engine)
    update = SeeUPO(normalize="group").update(engine, trajectories)
    assert not any("expected_gain" in metrics.values for metrics in update.metrics)
    one_task = [t for t in trajectories if t.group == "0"]
    update = SeeUPO().update(engine, one_task)
    assert all("expected_gain" in metrics.values for metrics in update.metrics)
    assert not any("expected_gain_se" in metrics.values for metrics in update.metrics)


def test_turns_that_a_trajectory_does_not_have_count_as_zero():
    """The mean is over all trajectories, weighted by their number of copies."""
    engine = table_engine(ragged_problem(), GradientAscent(3.0))
    merged = engine.sample(16, torch.Generator().manual_seed(2))
    options = {"ratio": "product", "normalize": "none"}
    update = SeeUPO(**options).update(engine, merged)
    singles = table_engine(ragged_problem(), GradientAscent(3.0))
    assert gains(SeeUPO(**options).update(singles, sampled(singles))) == pytest.approx(gains(update), rel=1e-9)
    total = sum(t.multiplicity for t in update.trajectories)
    for turn in range(3):
        value = sum(
            t.multiplicity * (credit.ratio - 1) * credit.carried_before
            for t in update.trajectories
            for credit in t.credit.turns
            if credit.turn == turn
        )
        assert gains(update)[turn] == pytest.approx(value / total, rel=1e-9)
