"""SeeUPO against hand-computed cases, enumeration and independent restatements of its mathematics."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
from seeupo.types import Failure, FailureKind, Trajectory, Turn
from studies.exact import ExactEngine, GradientAscent, Maximizer, TablePolicy
from studies.exact.problem import bandit


def credit_by_turn(trajectory: Trajectory) -> dict:
    return {credit.turn: credit for credit in trajectory.credit.turns}


# --- A three-turn example by hand -------------------------------------------------------------------------------------
#
# Two trajectories of one group, with rewards +1 and -1, so A = +1 and -1 without normalization. Each turn of each has
# a separate node, where the policy chooses between two tokens with probability 1/2. The objective of a pool is
# (r M of the first + r M of the second) / 2. At p = 1/2 and r = 1 its gradient is M (1 - p) / 2 = M / 4 in the logit of
# the chosen token and -M / 4 in that of the other, so a step with learning rate 2 log 3 moves the difference of the
# logits by M log 3, to a probability of 3^M / (1 + 3^M) and a ratio of
#
#     r(M) = 2 * 3^M / (1 + 3^M),        r(1) = 3/2,  r(-1) = 1/2.
#
# Without clip, the turn that is updated first has M = A, and each following one has what the last has left:
#
#     first trajectory:    M = 1      r = 3/2     ->  M = 3/2    r = 1.677219...  ->  M = 2.515828...  r = 1.881389...
#     second trajectory:   M = -1     r = 1/2     ->  M = -1/2   r = 0.732050...  ->  M = -0.366025... r = 0.801606...
#
# The order decides which turn gets which of these ratios.


def hand_ratio(m: float) -> float:
    return 2 * 3**m / (1 + 3**m)


def three_turn_example(rewards=(1.0, -1.0)) -> tuple[ExactEngine, list[Trajectory]]:
    problem = bandit(torch.zeros(2, 2, 2, 2, dtype=F64))
    engine = ExactEngine(
        problem, TablePolicy(torch.zeros(problem.num_nodes, 2, dtype=F64)), GradientAscent(2 * math.log(3))
    )
    first_paths = {"0": rewards[0], "8": rewards[1]}  # tokens 0, 0, 0 in either context
    trajectories = [
        replace(trajectory, group="one", multiplicity=1.0, reward=first_paths[trajectory.id])
        for trajectory in engine.enumerate()
        if trajectory.id in first_paths
    ]
    return engine, trajectories


@pytest.mark.parametrize(
    ("order", "seed", "sequence"),
    [("reverse", 0, [2, 1, 0]), ("natural", 0, [0, 1, 2]), ("random", 2, [0, 2, 1]), ("random", 0, [2, 0, 1])],
)
def test_each_order_gives_the_ratios_computed_by_hand(order, seed, sequence):
    engine, trajectories = three_turn_example()
    algorithm = SeeUPO(order=order, normalize="none", clip=None)
    update = algorithm.update(engine, trajectories, generator=torch.Generator().manual_seed(seed))
    for trajectory, advantage in zip(update.trajectories, (1.0, -1.0), strict=True):
        assert [credit.turn for credit in trajectory.credit.turns] == sequence
        m = advantage
        for credit in trajectory.credit.turns:
            assert credit.carried_before == pytest.approx(m, abs=1e-12)
            assert credit.ratio == pytest.approx(hand_ratio(m), abs=1e-12)
            m *= hand_ratio(m)
            assert credit.carried_after == pytest.approx(m, abs=1e-12)
    first, second = update.trajectories
    assert [credit.ratio for credit in first.credit.turns] == pytest.approx([1.5, 1.677219, 1.881389], abs=1e-6)
    assert [credit.ratio for credit in second.credit.turns] == pytest.approx([0.5, 0.732051, 0.801606], abs=1e-6)


def test_without_carry_every_turn_has_the_advantage_as_weight():
    engine, trajectories = three_turn_example()
    update = SeeUPO(normalize="none", clip=None, carry=False).update(engine, trajectories)
    for credit in update.trajectories[0].credit.turns:
        assert (credit.carried_before, credit.carried_after) == (1.0, 1.0)
        assert credit.ratio == pytest.approx(1.5)


def test_clip_flags_show_where_the_clip_is_active():
    engine, trajectories = three_turn_example()
    update = SeeUPO(normalize="none", clip=(0.2, 0.2)).update(engine, trajectories)
    first, second = (trajectory.credit.turns for trajectory in update.trajectories)
    assert [credit.clipped for credit in first] == [True, True, True]
    assert [credit.clipped for credit in second] == [True, True, False]  # 0.8016 is just inside
    assert [metrics.values["clip_fraction"] for metrics in update.metrics[:3]] == [1.0, 1.0, 0.5]


# --- M ----------------------------------------------------------------------------------------------------------------


def assert_m_is_the_product_of_the_ratios_to_theta_k(engine: ExactEngine, algorithm: SeeUPO) -> None:
    """M after the sweep is A times the ratios of each turn's own update, all relative to the policy that sampled."""
    trajectories = sampled(engine)
    before = {turn.key: engine.logprobs([turn])[0] for t in trajectories for turn in t.turns}
    update = algorithm.update(engine, trajectories, generator=torch.Generator().manual_seed(0))
    moved = 0
    for trajectory in update.trajectories:
        m = trajectory.credit.advantage
        for credit in trajectory.credit.turns:
            difference = torch.tensor(credit.new_logprobs, dtype=F64) - before[trajectory.id, credit.turn]
            ratio = math.exp(difference.sum() if algorithm.ratio == "product" else difference.mean())
            assert credit.ratio == pytest.approx(ratio, rel=1e-9)
            assert credit.carried_before == pytest.approx(m, rel=1e-9)
            m *= ratio
            assert credit.carried_after == pytest.approx(m, rel=1e-9)
            moved += abs(ratio - 1) > 1e-3
    assert moved > 10


@pytest.mark.parametrize("ratio", ["product", "length_normalized"])
@pytest.mark.parametrize("order", ["reverse", "natural", "random"])
@pytest.mark.parametrize("make_engine", [table_engine, network_engine])
@pytest.mark.parametrize("make_problem", [ragged_problem, wordy_problem])
def test_m_after_a_sweep_is_the_advantage_times_the_ratios(make_problem, make_engine, order, ratio):
    engine = make_engine(make_problem(), GradientAscent(5.0))
    assert_m_is_the_product_of_the_ratios_to_theta_k(engine, SeeUPO(order=order, ratio=ratio))


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["batch", "group", "none"]))
def test_permuting_the_trajectories_changes_nothing(random, normalize):
    results = []
    for shuffled in (False, True):
        engine = network_engine(ragged_problem())
        trajectories = sampled(engine)
        if shuffled:
            random.shuffle(trajectories)
        update = SeeUPO(normalize=normalize).update(engine, trajectories)
        results.append((weights_of(engine), {t.id: t.credit for t in update.trajectories}))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-9, atol=1e-12)
    for name, credit in results[0][1].items():
        other = results[1][1][name]
        assert [turn.turn for turn in credit.turns] == [turn.turn for turn in other.turns]
        for turn, same in zip(credit.turns, other.turns, strict=True):
            assert turn.carried_after == pytest.approx(same.carried_after, rel=1e-9)


# --- Trajectories without a turn, and trajectories without signal -----------------------------------------------------


def with_silent_turns(trajectory: Trajectory, turns: int) -> Trajectory:
    """The same trajectory with actions of no tokens appended: the paper's no-op, written out."""
    node = trajectory.turns[-1].prompt_ids
    silent = tuple(Turn(trajectory.id, turn, node, ()) for turn in range(len(trajectory.turns), turns))
    return replace(trajectory, turns=trajectory.turns + silent)


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_a_missing_turn_is_a_no_op(kl_coef):
    results = []
    for written_out in (False, True):
        engine = network_engine(ragged_problem())
        trajectories = sampled(engine)
        if written_out:
            trajectories = [with_silent_turns(trajectory, 3) for trajectory in trajectories]
        update = SeeUPO(kl_coef=kl_coef).update(engine, trajectories)
        results.append((weights_of(engine), [t.credit.turns[-1].carried_after for t in update.trajectories]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-14)
    assert results[0][1] == pytest.approx(results[1][1], abs=1e-14)


def test_a_trajectory_without_turns_only_counts_in_the_divisor():
    """At given advantages (its reward is its group's mean) it scales every step by N / (N + 1)."""
    engines = [table_engine(ragged_problem(), GradientAscent(rate)) for rate in (1.0, 33 / 32)]
    trajectories = sampled(engines[0])
    assert len(trajectories) == 32
    mean = sum(t.reward for t in trajectories if t.group == "0") / 16
    silent = Trajectory(id="silent", group="0", task="0", turns=(), reward=mean)
    algorithm = SeeUPO(normalize="none")
    algorithm.update(engines[0], trajectories)
    update = algorithm.update(engines[1], [*trajectories, silent])
    torch.testing.assert_close(weights_of(engines[0]), weights_of(engines[1]), rtol=0, atol=1e-12)
    assert update.trajectories[-1].credit.turns == ()


@pytest.mark.parametrize("normalize", ["batch", "group", "none"])
def test_groups_of_equal_rewards_are_not_computed(normalize):
    engine = SpyingEngine(table_engine(ragged_problem()))
    trajectories = [replace(trajectory, reward=0.1) for trajectory in sampled(engine)]
    before = weights_of(engine).clone()
    update = SeeUPO(normalize=normalize).update(engine, trajectories)
    assert engine.calls == []
    assert torch.equal(weights_of(engine), before)
    assert [metrics.agent for metrics in update.metrics] == [None]
    assert all(trajectory.credit.advantage == 0 for trajectory in update.trajectories)


def test_turns_of_weight_zero_are_computed_only_for_kl_or_entropy():
    dead = {"0"}

    def computed_groups(**options) -> set[str]:
        engine = SpyingEngine(table_engine(ragged_problem()))
        trajectories = [replace(t, reward=1.0) if t.group in dead else t for t in sampled(engine)]
        SeeUPO(**options).update(engine, trajectories)
        names = {turn.trajectory for _, turns in engine.calls for turn in turns}
        return {t.group for t in trajectories if t.id in names}

    assert computed_groups() == {"1"}
    assert computed_groups(kl_coef=0.1) == {"0", "1"}
    assert computed_groups(entropy_coef=0.1) == {"0", "1"}


def test_pools_below_min_live_are_skipped():
    engine = SpyingEngine(table_engine(ragged_problem()))
    trajectories = sampled(engine)
    sizes = [sum(len(t.turns) > turn for t in trajectories) for turn in range(3)]
    assert sizes[2] < sizes[1] < sizes[0]
    SeeUPO(min_live=sizes[1]).update(engine, trajectories)
    assert engine.agents == [1, 0]


# --- Against independent statements of the gradient -------------------------------------------------------------------


def table_gradient(engine: ExactEngine, objective) -> torch.Tensor:
    logits = engine.policy.logits.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(logits.log_softmax(1)), logits)
    return gradient


def test_the_first_step_of_the_first_pool_has_the_gradient_of_reinforce():
    engine = table_engine(ragged_problem(), GradientAscent(1.0))
    trajectories = sampled(engine)
    last = [t for t in trajectories if len(t.turns) == 3]
    baseline = {g: sum(t.reward for t in trajectories if t.group == g) / 16 for g in "01"}

    def reinforce(log_policy):
        terms = [
            (t.reward - baseline[t.group]) * log_policy[t.turns[2].prompt_ids[0], t.turns[2].action_ids[0]]
            for t in last
        ]
        return torch.stack(terms).sum() / len(trajectories)

    start = engine.policy.logits.detach().clone()
    expected = table_gradient(engine, reinforce)
    # The later pools belong to other nodes, so that what the table moved at the last turn's nodes is the first step.
    SeeUPO(normalize="none", ratio="product").update(engine, trajectories)
    nodes = sorted({t.turns[2].prompt_ids[0] for t in last})
    torch.testing.assert_close((engine.policy.logits.detach() - start)[nodes], expected[nodes])
    assert expected[nodes].abs().max() > 1e-3


@pytest.mark.parametrize("normalize", ["group", "batch"])
def test_with_one_turn_it_is_gspo(normalize):
    """GSPO restated: length-normalized sequence ratio, group-relative advantage, clip, mean over responses."""
    problem = bandit(torch.rand(2, 8, generator=torch.Generator().manual_seed(5), dtype=F64), tokens_per_turn=3)
    engine = table_engine(problem, GradientAscent(20.0))
    trajectories = sampled(engine)
    epochs, clip = 3, (0.05, 0.1)

    by_group = {g: torch.tensor([t.reward for t in trajectories if t.group == g], dtype=F64) for g in "01"}
    centered = {g: rewards - rewards.mean() for g, rewards in by_group.items()}
    overall = torch.cat(list(centered.values())).std(correction=0)
    scale = {g: rewards.std(correction=0) if normalize == "group" else overall for g, rewards in by_group.items()}
    paths = [int(t.id.split(".")[0]) for t in trajectories]
    places = [list(zip(problem.nodes[path, 0], problem.tokens[path, 0], strict=True)) for path in paths]

    def token_logprobs(log_policy):
        return torch.stack([torch.stack([log_policy[place] for place in row]) for row in places])

    logits = engine.policy.logits.detach().clone().requires_grad_()
    old = token_logprobs(logits.log_softmax(1)).detach()
    bound = False
    for _ in range(epochs):
        ratio = (token_logprobs(logits.log_softmax(1)) - old).mean(1).exp()
        terms = []
        for r, t in zip(ratio, trajectories, strict=True):
            advantage = (t.reward - by_group[t.group].mean()) / scale[t.group]
            terms.append(torch.minimum(r * advantage, r.clamp(1 - clip[0], 1 + clip[1]) * advantage))
            bound = bound or bool(abs(r - 1) > 0.05)
        (gradient,) = torch.autograd.grad(torch.stack(terms).mean(), logits)
        logits = (logits + 20.0 * gradient).detach().requires_grad_()
    assert bound

    SeeUPO(normalize=normalize, clip=clip, epochs=epochs).update(engine, trajectories)
    torch.testing.assert_close(engine.policy.logits.detach(), logits.detach(), rtol=1e-9, atol=1e-12)


def test_kl_and_entropy_terms_have_the_stated_gradient():
    engine = table_engine(wordy_problem(), GradientAscent(1.0))
    with torch.no_grad():
        engine.policy.logits += 0.3  # shifts no probability
        engine.policy.logits[:, 0] += 0.5  # moves away from the reference, which is the policy at the start
    trajectories = [replace(t, reward=0.0) for t in sampled(engine)]  # no advantage: the terms alone
    turns = [t.turns[1] for t in trajectories]
    paths = [int(t.id.split(".")[0]) for t in trajectories]
    reference = engine.logprobs(turns, policy="reference")

    def terms(log_policy):
        total = 0.0
        for path, turn, ref in zip(paths, turns, reference, strict=True):
            nodes = engine.problem.nodes[path, 1]
            logprobs = log_policy[nodes, torch.tensor(turn.action_ids)]
            kl = ((ref - logprobs).exp() - (ref - logprobs) - 1).mean()
            entropy = -(log_policy.exp() * log_policy).sum(1)[nodes].mean()
            total = total - 0.3 * kl + 0.2 * entropy
        return total / len(trajectories)

    start = engine.policy.logits.detach().clone()
    expected = table_gradient(engine, terms)
    SeeUPO(kl_coef=0.3, entropy_coef=0.2).update(engine, trajectories)
    moved = engine.problem.nodes[paths, 1].unique()
    torch.testing.assert_close((engine.policy.logits.detach() - start)[moved], expected[moved])
    assert expected[moved].abs().max() > 1e-3


def test_the_reference_is_used_only_with_a_kl_term():
    engine = SpyingEngine(table_engine(ragged_problem()))
    SeeUPO().update(engine, sampled(engine))
    assert {kind for kind, _ in engine.calls} == {"current", "step"}


def test_log_probs_under_theta_k_are_computed_once_before_any_update():
    engine = SpyingEngine(network_engine(ragged_problem()))
    trajectories = sampled(engine)
    SeeUPO().update(engine, trajectories)
    kinds = [kind for kind, _ in engine.calls]
    assert kinds == ["current", "step", "current", "step", "current", "step", "current"]
    assert len(engine.calls[0][1]) == sum(len(t.turns) for t in trajectories)
    assert {turn.index for turn in engine.calls[2][1]} == {2}


# --- Steps, mini-batches, weights -------------------------------------------------------------------------------------


def test_mini_batches_split_the_trajectories_and_their_normalizers_add_up():
    engine = SpyingEngine(network_engine(ragged_problem()))
    trajectories = sampled(engine)
    update = SeeUPO(steps_per_turn=4, epochs=2).update(engine, trajectories, generator=torch.Generator().manual_seed(0))
    for turn in range(3):
        steps = [
            (turns, normalizer)
            for (_, turns), normalizer, agent in zip(
                [call for call in engine.calls if call[0] == "step"], engine.normalizers, engine.agents, strict=True
            )
            if agent == turn
        ]
        seen = sorted(turn.trajectory for turns, _ in steps for turn in turns)
        expected = sorted(t.id for t in trajectories if len(t.turns) > turn)
        assert seen == sorted(expected * 2)
    assert engine.normalizers[0] == 8
    overall = update.metrics[-1]
    assert overall.agent is None
    assert overall.values["optimizer_steps"] == len(engine.normalizers)


def test_mini_batches_and_random_order_need_a_generator():
    engine = table_engine(ragged_problem())
    with pytest.raises(ValueError, match="random mini-batches need a torch"):
        SeeUPO(steps_per_turn=2).update(engine, sampled(engine))
    with pytest.raises(ValueError, match="order = 'random': needs a generator"):
        SeeUPO(order="random").update(engine, sampled(engine))


def test_a_weighted_trajectory_stands_for_its_copies():
    merged_engine, single_engine = (network_engine(ragged_problem()) for _ in range(2))
    merged = merged_engine.sample(16, torch.Generator().manual_seed(2))
    singles = sampled(single_engine)
    assert len(merged) < len(singles)
    for algorithm in (SeeUPO(), SeeUPO(kl_coef=0.1, entropy_coef=0.1)):
        algorithm.update(merged_engine, merged)
        algorithm.update(single_engine, singles)
        torch.testing.assert_close(weights_of(merged_engine), weights_of(single_engine), rtol=1e-9, atol=1e-12)


# --- Metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_of_the_example_computed_by_hand():
    engine, trajectories = three_turn_example()
    update = SeeUPO(normalize="none", clip=None).update(engine, trajectories)
    by_turn = {metrics.agent: metrics.values for metrics in update.metrics}
    assert list(by_turn) == [2, 1, 0, None]
    middle = by_turn[1]  # M = 3/2 and -1/2 against A = 1 and -1: multipliers 3/2 and 1/2
    assert middle["carry_mean"] == pytest.approx(1.0)
    assert middle["carry_sd"] == pytest.approx(0.5)
    assert middle["carry_max"] == pytest.approx(1.5)
    assert middle["ess_fraction"] == pytest.approx(2**2 / (2 * (1.5**2 + 0.5**2)))
    ratios = [hand_ratio(1.5), hand_ratio(-0.5)]
    assert middle["ratio_mean"] == pytest.approx(sum(ratios) / 2)
    assert (middle["ratio_min"], middle["ratio_max"]) == pytest.approx((min(ratios), max(ratios)))
    assert middle["kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / 2)  # one token an action
    assert middle["clip_fraction"] == 0
    assert middle["live_turns"] == middle["used_turns"] == 2
    assert by_turn[2]["grad_norm"] == pytest.approx(0.5)  # four components of 1/4
    assert by_turn[None]["optimizer_steps"] == 3


def test_kl_to_the_reference_is_reported_only_with_a_kl_term():
    engine = table_engine(ragged_problem())
    update = SeeUPO(kl_coef=1e-9).update(engine, sampled(engine))
    for metrics in update.metrics[:-1]:
        terms = []
        for trajectory in update.trajectories:
            for credit in trajectory.credit.turns:
                if credit.turn == metrics.agent:
                    (frozen,) = engine.logprobs([trajectory.turns[credit.turn]], policy="reference")
                    terms.append(float((frozen - credit.new_logprobs[0]).expm1() - (frozen - credit.new_logprobs[0])))
        assert metrics.values["kl_reference"] == pytest.approx(sum(terms) / len(terms), rel=1e-9)
        assert metrics.values["kl_reference"] > 0
    assert "kl_reference" not in SeeUPO().update(engine, sampled(engine)).metrics[0].values


def test_the_kl_metric_is_per_token_for_any_ratio():
    """By enumeration: the mean over theta_k's own tokens of KL(theta_k || new), for two-token actions."""
    engine = table_engine(wordy_problem(), GradientAscent(5.0))
    old = engine.log_policy()
    update = SeeUPO(ratio="length_normalized").update(engine, engine.enumerate())
    new, reach = engine.log_policy(), engine.problem.reach(old)
    per_node = (old.exp() * (old - new)).sum(1)
    for metrics in update.metrics[:-1]:
        nodes = engine.problem.nodes[:, metrics.agent].unique()
        expected = float((reach * per_node)[nodes].sum() / reach[nodes].sum())
        assert metrics.values["kl"] == pytest.approx(expected, rel=1e-9)


def test_metrics_stay_finite_when_an_action_becomes_impossible():
    engine = table_engine(ragged_problem(), Maximizer((0.8, 1.2)))
    for _ in range(5):
        update = SeeUPO(ratio="product").update(engine, engine.enumerate())
    values = [value for metrics in update.metrics for value in metrics.values.values()]
    assert all(math.isfinite(value) for value in values)


# --- Invalid arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "backwards"}, "order = 'backwards'"),
        ({"normalize": "layer"}, "normalize = 'layer'"),
        ({"baseline": "zero"}, "baseline = 'zero'"),
        ({"ratio": "sum"}, "ratio = 'sum'"),
        ({"clip": (1.2, 0.2)}, r"clip = \(1.2, 0.2\): expected a list: number in \[0, 1\), number >= 0 or "),
        ({"clip": (0.2, -0.2)}, r"clip = \(0.2, -0.2\): expected a list: number in \[0, 1\), number >= 0 or "),
        ({"kl_coef": -1.0}, "kl_coef = -1.0: expected a number >= 0"),
        ({"entropy_coef": math.nan}, "entropy_coef = nan"),
        ({"kl_coef": "0.1"}, "kl_coef = '0.1': expected a number"),
        ({"entropy_coef": True}, "entropy_coef = True: expected a number"),
        ({"steps_per_turn": 0}, "steps_per_turn = 0: expected an integer >= 1"),
        ({"epochs": 2.5}, "epochs = 2.5: expected an integer"),
        ({"min_live": True}, "min_live = True: expected an integer"),
        ({"carry": "off"}, "carry = 'off': expected true or false"),
        ({"clip": {0.1, 0.3}}, "expected a list"),
        ({"clip": ("a", "b")}, r"clip = \('a', 'b'\): expected a list: number"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        SeeUPO(**options)


def test_invalid_batches_are_rejected():
    engine = table_engine(ragged_problem())
    trajectories = sampled(engine)
    with pytest.raises(ValueError, match=r"trajectories = \[\]"):
        SeeUPO().update(engine, [])
    with pytest.raises(ValueError, match="two trajectories have the same id"):
        SeeUPO().update(engine, [trajectories[0], trajectories[0]])
    failed = replace(trajectories[0], failure=Failure(FailureKind.WORKER_LOST, "its worker died"))
    with pytest.raises(ValueError, match="failed and has no score"):
        SeeUPO().update(engine, [failed, *trajectories[1:]])
    confused = replace(trajectories[0], turns=tuple(reversed(trajectories[-1].turns)))
    with pytest.raises(ValueError, match="has the key"):
        SeeUPO().update(engine, [confused, *trajectories[1:]])
    with pytest.raises(ValueError, match=r"reward of trajectory .* = None: expected a number"):
        SeeUPO().update(engine, [replace(trajectories[0], reward=None), *trajectories[1:]])
    with pytest.raises(ValueError, match=r"multiplicity of trajectory .* = 0\.0: expected a finite number above 0"):
        SeeUPO().update(engine, [replace(trajectories[0], multiplicity=0.0), *trajectories[1:]])
    with pytest.raises(ValueError, match=r"reward of trajectory .* = nan: expected a finite number"):
        SeeUPO().update(engine, [replace(trajectories[0], reward=math.nan), *trajectories[1:]])


def test_the_maximizer_accepts_any_scale_of_advantages():
    engines = [table_engine(ragged_problem(), Maximizer((0.8, 1.2))) for _ in range(2)]
    for engine, normalize in zip(engines, ("none", "batch"), strict=True):
        SeeUPO(normalize=normalize).update(engine, engine.enumerate())
    torch.testing.assert_close(engines[0].log_policy(), engines[1].log_policy())


DOCUMENTED_EXAMPLE = Path(__file__).parents[2] / "docs/explanation/method.md"


def test_worked_example_of_the_documentation():
    """The table under "A worked example": a task of two turns that succeeds if both actions are right (action 0)."""

    def sweep(**options) -> tuple[list[Trajectory], list[float]]:
        problem = bandit(torch.tensor([[[1.0, 0.0], [0.0, 0.0]]], dtype=F64))
        policy = TablePolicy(torch.zeros(problem.num_nodes, 2, dtype=F64))
        engine = ExactEngine(problem, policy, GradientAscent(learning_rate=0.3476))
        updated = SeeUPO(**options).update(engine, engine.enumerate()).trajectories
        return list(updated), engine.log_policy().exp()[:, 0].tolist()

    text = DOCUMENTED_EXAMPLE.read_text(encoding="utf-8")
    section = text.partition("## A worked example")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| `")]
    names = {"`right`": (0,), "`wrong`": (1,)}
    documented = {(names[row[0]], names[row[1]]): [float(cell) for cell in row[2:]] for row in rows}
    trajectories, probabilities = sweep()
    assert len(documented) == len(trajectories) == 4
    for trajectory in trajectories:
        first, second = credit_by_turn(trajectory)[0], credit_by_turn(trajectory)[1]
        computed = [
            trajectory.reward, trajectory.credit.advantage,
            second.ratio, second.carried_after, first.ratio, first.carried_after,
        ]  # fmt: skip
        assert documented[tuple(turn.action_ids for turn in trajectory.turns)] == pytest.approx(computed, abs=0.005)
        assert second.carried_before == trajectory.credit.advantage
        assert first.carried_before == second.carried_after
    assert probabilities[:2] == pytest.approx([0.555, 0.55], abs=5e-4)
    assert sweep(carry=False)[1][0] == pytest.approx(0.55, abs=5e-4)
