"""Turns of several roles, whose order differs between the attempts of a group."""

import math
from collections import Counter
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
)
from engines.examples import engine as local_engine
from engines.examples import trajectories as local_trajectories
from engines.examples import weights as local_weights
from seeupo.algorithms import MTGRPO, PPO, GiGPO, SeeUPO
from seeupo.algorithms.common.batch import Batch
from seeupo.config.optimizer_settings import CriticSettings
from seeupo.errors import TrainingError
from seeupo.types import Trajectory, Turn
from studies.exact import GradientAscent
from studies.exact.problem import bandit

ORDERS = {
    "two roles": ["pwpw", "wppw", "ppww"],
    "three roles": ["pabp", "apbp", "bpap", "abpp"],
    "roles and none": [" w w", "w  w"],
}


def problem_of(orders):
    """One context per order of execution; the reward depends on what each call of each role chose."""
    rewards = torch.rand(2, 2, 2, 2, generator=torch.Generator().manual_seed(4), dtype=F64)
    calls = sorted(orders[0])

    def axes(order):
        seen = Counter()
        places = []
        for role in order:
            places.append(calls.index(role) + seen[role])
            seen[role] += 1
        return places

    return bandit(torch.stack([rewards.permute(axes(order)) for order in orders]))


def in_roles(trajectories, orders):
    """Give the turns the roles of their context's order; all trajectories are attempts of one group."""
    return [
        replace(
            tau,
            group="g",
            task="g",
            turns=tuple(replace(turn, agent_role=orders[int(tau.group)][turn.index].strip()) for turn in tau.turns),
        )
        for tau in trajectories
    ]


def made(*orders: str) -> list[Trajectory]:
    """Trajectories with these roles, one letter per turn."""
    return [
        Trajectory(
            str(n),
            "g",
            "g",
            tuple(Turn(str(n), t, (t,), (t,), agent_role=role.strip()) for t, role in enumerate(order)),
            reward=float(n),
        )
        for n, order in enumerate(orders)
    ]


def pools_of(trajectories, turns_per_agent=1):
    return {
        agent: [turn.key for turn in pool] for agent, pool in Batch(trajectories).agent_pools(turns_per_agent).items()
    }


# --- Pools ------------------------------------------------------------------------------------------------------------


def test_pools_are_those_of_roles_in_the_order_of_their_median_start():
    assert pools_of(made("pwv", "pvw", "pwv")) == {
        "p:0": [("0", 0), ("1", 0), ("2", 0)],
        "w:0": [("0", 1), ("1", 2), ("2", 1)],
        "v:0": [("0", 2), ("1", 1), ("2", 2)],
    }
    assert list(pools_of(made("wv", "vw"))) == ["v:0", "w:0"]  # a tie: by role
    assert list(pools_of(made("pw p", "wp  "))) == ["p:0", "w:0", 0, 1, "p:1"]  # no role is a role
    assert list(pools_of(made("pwpwp", "wwp"), 2).items()) == [
        ("w:0", [("0", 1), ("0", 3), ("1", 0), ("1", 1)]),
        ("p:0", [("0", 0), ("0", 2), ("1", 2)]),
        ("p:1", [("0", 4)]),
    ]


def test_an_agent_never_precedes_an_earlier_one_of_its_role():
    """The median start of w:1 is 2, that of w:0 is 6, because few trajectories have two turns of the worker."""
    orders = ["pww", "ppppppw", "ppppppw"]
    agents = list(pools_of(made(*orders)))
    assert agents.index("w:1") > agents.index("w:0")


@pytest.mark.parametrize("turns_per_agent", [1, 2])
@pytest.mark.parametrize("role", ["", "planner"])
def test_one_role_has_the_pools_and_the_update_of_turns(role, turns_per_agent):
    plain = local_trajectories(3)
    named = [replace(tau, turns=tuple(replace(turn, agent_role=role) for turn in tau.turns)) for tau in plain]
    slices = [
        [turn.key for tau in plain for turn in tau.turns[first : first + turns_per_agent]]
        for first in range(0, 3, turns_per_agent)
    ]
    assert list(pools_of(named, turns_per_agent).values()) == slices
    engines = [local_engine() for _ in range(2)]
    algorithm = SeeUPO(turns_per_agent=turns_per_agent)
    updates = [algorithm.update(*pair) for pair in zip(engines, (plain, named), strict=True)]
    assert torch.equal(*map(local_weights, engines))
    assert [m.values for m in updates[0].metrics] == [m.values for m in updates[1].metrics]
    assert {m.agent_role for m in updates[1].metrics if m.agent is not None} == {role}


def test_optimizer_moments_are_those_of_the_virtual_agent():
    """Not of its position, which changes from iteration to iteration; they are saved and loaded."""
    local = local_engine(moments="per_agent")
    SeeUPO().update(local, with_roles("pwp", "wpp"))
    assert set(local._optimizer.by_agent) == {"p:0", "p:1", "w:0"}
    names = list(local._optimizer.tensors())
    moments = {name: tensor.clone() for name, tensor in local._optimizer.tensors().items()}
    for name, tensor in local._optimizer.prepare(names).items():
        tensor.copy_(moments[name])
    assert set(local._optimizer.by_agent) == {"p:0", "p:1", "w:0"}
    assert all(torch.equal(moments[name], tensor) for name, tensor in local._optimizer.tensors().items())


def with_roles(*orders):
    """Trajectories of the small models; every other attempt has the next order."""
    return [
        replace(
            tau,
            turns=tuple(
                replace(turn, agent_role=role) for turn, role in zip(tau.turns, orders[n % len(orders)], strict=False)
            ),
        )
        for n, tau in enumerate(local_trajectories(3))
    ]


# --- Telescoping ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["reverse", "natural", "random"])
@pytest.mark.parametrize("make_engine", [table_engine, network_engine])
@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
def test_m_after_a_sweep_is_the_advantage_times_the_ratios_of_all_roles(orders, make_engine, order):
    engine = make_engine(problem_of(orders), GradientAscent(5.0))
    trajectories = in_roles(sampled(engine), orders)
    before = {turn.key: engine.logprobs([turn])[0] for tau in trajectories for turn in tau.turns}
    algorithm = SeeUPO(order=order, ratio="product", normalize="none")
    update = algorithm.update(engine, trajectories, generator=torch.Generator().manual_seed(1))
    moved = 0
    for tau in update.trajectories:
        assert sorted(credit.turn for credit in tau.credit.turns) == [0, 1, 2, 3]
        m = tau.credit.advantage
        for credit in tau.credit.turns:
            ratio = math.exp((torch.tensor(credit.new_logprobs, dtype=F64) - before[tau.id, credit.turn]).sum())
            assert credit.carried_before == pytest.approx(m, rel=1e-12)
            m *= ratio
            assert credit.carried_after == pytest.approx(m, rel=1e-12)
            moved += abs(ratio - 1) > 1e-3
    assert moved > 10


@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
def test_the_gain_of_each_agent_is_the_change_of_j_by_its_update(orders):
    """E[(r - 1) M] with M = A times the ratios of the agents updated before, by enumeration; the sum telescopes."""
    engine = table_engine(problem_of(orders), GradientAscent(3.0))
    old, start = engine.log_policy(), engine.expected_return()
    trajectories = in_roles(engine.enumerate(), orders)
    pools = list(Batch(trajectories).agent_pools(1).values())
    update = SeeUPO(ratio="product", normalize="none").update(engine, trajectories)
    new, current, changes = engine.log_policy(), old.clone(), {}
    for t in reversed(range(len(pools))):
        before = float(engine.problem.expected_return(current))
        nodes = sorted({turn.prompt_ids[-1] for turn in pools[t]})
        current[nodes] = new[nodes]
        changes[t] = float(engine.problem.expected_return(current)) - before
    gains = {metrics.agent: metrics.values["expected_gain"] for metrics in update.metrics}
    assert gains.pop(None) == pytest.approx(engine.expected_return() - start, abs=1e-12)
    assert gains == pytest.approx(changes, abs=1e-12)
    assert sum(changes.values()) == pytest.approx(engine.expected_return() - start, abs=1e-12)
    assert min(changes.values()) > 1e-4
    roles = {metrics.agent: metrics.agent_role for metrics in update.metrics if metrics.agent is not None}
    assert roles == {t: pool[0].agent_role for t, pool in enumerate(pools)}


def test_the_update_is_that_of_one_order_if_the_roles_are_independent_of_it():
    """Two attempts whose parallel calls started in another order have the same pools as in the same order."""
    engines = [SpyingEngine(table_engine(problem_of(["pwpw"]), GradientAscent(3.0))) for _ in range(2)]
    for engine, swap in zip(engines, (False, True), strict=True):
        trajectories = in_roles(sampled(engine), ["pwpw"])
        for n, tau in enumerate(trajectories):
            if swap and n % 3 == 0:  # the second call of each role started first
                p0, w0, p1, w1 = tau.turns
                turns = (p0, w0, replace(w1, index=2), replace(p1, index=3))
                trajectories[n] = replace(tau, turns=turns)
        SeeUPO().update(engine, trajectories)
    torch.testing.assert_close(*map(weights_of, engines), rtol=1e-12, atol=1e-13)
    assert engines[1].agents == ["w:1", "p:1", "w:0", "p:0"]


# --- Other algorithms -------------------------------------------------------------------------------------------------


def test_mt_grpo_compares_turns_within_their_role():
    """The same calls with the same rewards, in another order: every turn has the same advantage."""
    rewards = {"p": 1.0, "w": 3.0}

    def advantages(*orders):
        trajectories = [
            replace(tau, outcome=tau.reward, turns=tuple(replace(t, reward=rewards[t.agent_role]) for t in tau.turns))
            for tau in with_roles(*orders)
            if len(tau.turns) == 3
        ]
        update = MTGRPO(minibatches=1).update(local_engine(), trajectories)
        overall = next(metrics.values for metrics in update.metrics if metrics.agent is None)
        return overall["turn_advantage_sd"]

    assert advantages("pwp", "wpp") == 0  # all rewards of a role are equal


def test_gigpo_compares_states_of_the_same_role_only():
    trajectories = [
        replace(tau, turns=tuple(replace(turn, state_key="s") for turn in tau.turns[:2]))
        for tau in with_roles("pw", "wp")
    ]
    update = GiGPO(kl_coef=0.0, minibatches=1).update(local_engine(), trajectories)
    overall = next(metrics.values for metrics in update.metrics if metrics.agent is None)
    assert overall["turn_group_size"] == 4  # of the eight turns of a group, four are the planner's


def test_ppo_refuses_several_roles_unless_lambda_is_1():
    options = {"critic": CriticSettings()}
    trajectories = with_roles("pwp", "wpp")
    with pytest.raises(TrainingError, match=r"lam = 0.95 with turns of the roles p, w: expected 1.* Set algorithm.lam"):
        PPO(minibatches=1).update(local_engine(**options), trajectories)
    PPO(minibatches=1, lam=1.0).update(local_engine(**options), trajectories)
    PPO(minibatches=1).update(local_engine(**options), with_roles("ppp"))


def test_ragged_trajectories_of_roles_telescope():
    engine = network_engine(ragged_problem(), GradientAscent(5.0))
    trajectories = in_roles(sampled(engine), ["pwp", "wpw"])
    update = SeeUPO(ratio="product").update(engine, trajectories)
    for tau in update.trajectories:
        ratios = [credit.ratio for credit in tau.credit.turns]
        assert len(ratios) == len(tau.turns)
        assert tau.credit.turns[-1].carried_after == pytest.approx(tau.credit.advantage * math.prod(ratios), rel=1e-12)
