"""All algorithms except SeeUPO against restatements of their papers' formulas, enumeration, and one another."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.examples import (
    F64,
    network_engine,
    ragged_problem,
    sampled,
    table_engine,
    weights_of,
    wordy_problem,
)
from seeupo.algorithms import ALGORITHMS, GRPO, GSPO, PPO, RLOO, ReinforcePP, SeeUPO
from seeupo.algorithms.common.batch import Batch, logprobs_by_key
from seeupo.algorithms.common.critic import ValueLoss
from seeupo.algorithms.common.objective import SequenceObjective, TokenObjective, TrajectoryObjective
from seeupo.types import StepMetrics, StopReason, Trajectory, Turn, turns_of
from studies.exact import ExactEngine, GradientAscent
from studies.exact.problem import bandit

CRITIC_FREE = [GRPO(), GSPO(), RLOO(), ReinforcePP()]
STEP = GradientAscent(0.3)


class CriticEngine(ExactEngine):
    """An exact engine whose critic is a table: the value of each node, and of the end of each trajectory."""

    def __init__(self, inner, seed=5):
        super().__init__(inner.problem, inner.policy, inner.update)
        self.capabilities = frozenset({"critic", "shrink"})
        self.table = torch.rand(inner.problem.num_nodes, generator=torch.Generator().manual_seed(seed), dtype=F64)
        self.ends = 0.25
        self.losses = []

    def values(self, trajectories):
        rows = []
        for trajectory in trajectories:
            nodes = [node for turn in trajectory.turns for node in self.nodes(turn)]
            rows.append(torch.cat([self.table[nodes], torch.tensor([self.ends], dtype=F64)]))
        return rows

    def nodes(self, turn):
        nodes, _, mask = self._locate([turn])
        return nodes[0][mask[0]].tolist()

    def step_critic(self, turns, loss, *, normalizer):
        values = [self.table[self.nodes(turn)] for turn in turns]
        total = loss(torch.nn.utils.rnn.pad_sequence(values, batch_first=True), turns).sum() / normalizer
        self.losses.append(float(total))
        return StepMetrics(None, {"grad_norm": 0.5, "critic_loss": float(total)})


def token_logprobs(engine, turn):
    """Log-probs of an action's tokens, with gradient."""
    nodes, tokens, _ = engine._locate([turn])
    return engine.policy.log_probs()[nodes[0], tokens[0]]


def clipped(ratio, weight, clip):
    if clip is None:
        return ratio * weight
    return torch.minimum(ratio * weight, ratio.clamp(1 - clip[0], 1 + clip[1]) * weight)


def deviation(values):
    return (sum((v - sum(values) / len(values)) ** 2 for v in values) / len(values)) ** 0.5


def rewards_of_group(trajectory, trajectories):
    return [other.reward for other in trajectories if other.group == trajectory.group]


def kl_and_entropy(algorithm, engine, trajectory, reference):
    """Means over the tokens of a trajectory, or of each turn where turns are the sequences."""
    of_turns = []
    for turn in trajectory.turns:
        new = token_logprobs(engine, turn)
        log_q = reference[turn.key] - new
        kl = log_q.exp() - log_q - 1
        log_policy = engine.policy.log_probs()[engine._locate([turn])[0][0]]
        entropy = -(log_policy.exp() * log_policy).sum(-1)
        of_turns.append(algorithm.entropy_coef * entropy - algorithm.kl_coef * kl)
    if getattr(algorithm, "level", "trajectory") == "turn":
        return sum(row.mean() for row in of_turns)
    tokens = torch.cat(of_turns)
    return tokens.mean() if getattr(algorithm, "length_term", True) else tokens.sum() / algorithm.constant_length


def moved_engine(problem, update=STEP):
    """An engine whose policy is no longer its reference."""
    engine = network_engine(problem, update)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in engine.policy.parameters().values():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=F64))
    return engine


def ascend(engine, total, rate=0.3):
    parameters = list(engine.policy.parameters().values())
    gradients = torch.autograd.grad(total, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.add_(gradient, alpha=rate)


# The formulas of the papers, trajectory by trajectory and token by token. `old` is per (trajectory, turn).


def grpo_value(algorithm, engine, trajectory, trajectories, old):
    rewards = rewards_of_group(trajectory, trajectories)
    spread = deviation(rewards)
    advantage = trajectory.reward - sum(rewards) / len(rewards)
    if algorithm.deviation_term:
        advantage = advantage / spread if spread > 1e-8 else 0.0
    total, length = 0.0, 0
    for turn in trajectory.turns:
        for new, before in zip(token_logprobs(engine, turn), old[turn.key], strict=True):
            total, length = total + clipped((new - before).exp(), advantage, algorithm.clip), length + 1
    return total / (length if algorithm.length_term else algorithm.constant_length)


def gspo_value(algorithm, engine, trajectory, trajectories, old):
    rewards = rewards_of_group(trajectory, trajectories)
    spread = deviation(rewards)
    advantage = (trajectory.reward - sum(rewards) / len(rewards)) / spread if spread > 1e-8 else 0.0
    differences = [token_logprobs(engine, turn) - old[turn.key] for turn in trajectory.turns]
    if algorithm.level == "turn":
        return sum(clipped(row.mean().exp(), advantage, algorithm.clip) for row in differences)
    return clipped(torch.cat(differences).mean().exp(), advantage, algorithm.clip)


def rloo_value(algorithm, engine, trajectory, trajectories, old):
    others = [o.reward for o in trajectories if o.group == trajectory.group and o.id != trajectory.id]
    advantage = trajectory.reward - sum(others) / len(others)
    difference = sum((token_logprobs(engine, s) - old[s.key]).sum() for s in trajectory.turns)
    return clipped(difference.exp(), advantage, algorithm.clip)


def reinforce_pp_value(algorithm, engine, trajectory, trajectories, old):
    def raw(t):
        """Per token: reward minus the group's mean, minus what the divergence from here on costs."""
        rewards = rewards_of_group(t, trajectories)
        reference = engine.logprobs(t.turns, policy="reference")
        apart = [float(d) for s, row in zip(t.turns, reference, strict=True) for d in old[s.key] - row]
        base = t.reward - sum(rewards) / len(rewards)
        return [base - algorithm.kl_reward_coef * sum(apart[n:]) for n in range(len(apart))]

    tokens = [value for t in trajectories for value in raw(t)]
    mean, spread = sum(tokens) / len(tokens), deviation(tokens)
    log_ratios = torch.cat([token_logprobs(engine, s) - old[s.key] for s in trajectory.turns])
    values = [
        clipped(log_ratio.exp(), (advantage - mean) / spread, algorithm.clip)
        for log_ratio, advantage in zip(log_ratios, raw(trajectory), strict=True)
    ]
    return sum(values) / len(values)


STATED = [
    (GRPO(kl_coef=0.0), grpo_value),
    (GRPO(kl_coef=0.3, clip=(0.01, 0.02)), grpo_value),
    (GRPO(kl_coef=0.1, deviation_term=False, length_term=False, constant_length=7), grpo_value),
    (GSPO(minibatches=1), gspo_value),
    (GSPO(minibatches=1, clip=(0.01, 0.03), kl_coef=0.2), gspo_value),
    (GSPO(minibatches=1, level="turn", clip=(0.01, 0.01), kl_coef=0.2, entropy_coef=0.1), gspo_value),
    (RLOO(), rloo_value),
    (RLOO(clip=(0.05, 0.05), kl_coef=0.1), rloo_value),
    (ReinforcePP(kl_coef=0.0), reinforce_pp_value),
    (ReinforcePP(clip=(0.01, 0.01), entropy_coef=0.2, kl_reward_coef=0.3), reinforce_pp_value),
]


@pytest.mark.parametrize("problem", [ragged_problem(), wordy_problem()], ids=["ragged", "wordy"])
@pytest.mark.parametrize(("algorithm", "value"), STATED, ids=lambda x: type(x).__name__)
def test_three_steps_follow_the_papers_formula(algorithm, value, problem):
    """Steps after the first are off-policy: ratios differ from 1, clips are active, other turns matter."""
    algorithm = replace(algorithm, epochs=3)
    engine, twin = moved_engine(problem), moved_engine(problem)
    trajectories = sampled(engine, 6)
    algorithm.update(engine, trajectories)

    turns = turns_of(trajectories)
    old = logprobs_by_key(twin, turns)
    reference = logprobs_by_key(twin, turns, "reference")
    for _ in range(3):
        total = sum(
            value(algorithm, twin, t, trajectories, old) + kl_and_entropy(algorithm, twin, t, reference)
            for t in trajectories
        )
        ascend(twin, total / len(trajectories))
    torch.testing.assert_close(weights_of(engine), weights_of(twin), rtol=0, atol=1e-11)


def stated_gae(rewards, values, end, gamma, lam):
    """The sum over what follows, token by token."""
    behind = [*values[1:], end]
    delta = [reward + gamma * after - before for reward, before, after in zip(rewards, values, behind, strict=True)]
    return [sum((gamma * lam) ** (u - t) * delta[u] for u in range(t, len(delta))) for t in range(len(delta))]


@pytest.mark.parametrize("bootstrap_truncated", [False, True])
@pytest.mark.parametrize("problem", [ragged_problem(), wordy_problem()], ids=["ragged", "wordy"])
def test_three_steps_of_ppo_follow_its_formula(problem, bootstrap_truncated):
    algorithm = PPO(
        minibatches=1, epochs=3, clip=(0.02, 0.03), gamma=0.97, lam=0.9, kl_coef=0.1, entropy_coef=0.05,
        kl_reward_coef=0.2, bootstrap_truncated=bootstrap_truncated,
    )  # fmt: skip
    engine, twin = CriticEngine(moved_engine(problem)), CriticEngine(moved_engine(problem))
    trajectories = [
        replace(t, stop=StopReason.TURN_LIMIT if number % 3 == 0 else t.stop)
        for number, t in enumerate(sampled(engine, 6))
    ]
    algorithm.update(engine, trajectories)

    turns = turns_of(trajectories)
    old = logprobs_by_key(twin, turns)
    reference = logprobs_by_key(twin, turns, "reference")
    advantages = {}
    for trajectory in trajectories:
        rewards = [
            -0.2 * float(mine - theirs)
            for s in trajectory.turns
            for mine, theirs in zip(old[s.key], reference[s.key], strict=True)
        ]
        bootstrap = bootstrap_truncated and trajectory.stop is StopReason.TURN_LIMIT
        rewards[-1] += 0.0 if bootstrap else trajectory.reward
        values = [float(twin.table[node]) for s in trajectory.turns for node in twin.nodes(s)]
        advantages[trajectory.id] = stated_gae(rewards, values, twin.ends if bootstrap else 0.0, 0.97, 0.9)
    everything = [value for row in advantages.values() for value in row]
    mean, spread = sum(everything) / len(everything), deviation(everything)
    for _ in range(3):
        total = 0.0
        for trajectory in trajectories:
            tokens = torch.cat([token_logprobs(twin, s) - old[s.key] for s in trajectory.turns])
            for log_ratio, advantage in zip(tokens, advantages[trajectory.id], strict=True):
                total = total + clipped(log_ratio.exp(), (advantage - mean) / spread, algorithm.clip)
            total = total + len(tokens) * kl_and_entropy(algorithm, twin, trajectory, reference)
        ascend(twin, total / len(everything))
    torch.testing.assert_close(weights_of(engine), weights_of(twin), rtol=0, atol=1e-11)


def test_clips_are_active_in_the_restated_cases():
    """Otherwise the test above would not cover them."""
    for algorithm, _ in STATED:
        if algorithm.clip is not None and algorithm.clip[0] <= 0.05:
            engine = network_engine(wordy_problem(), GradientAscent(1.0))
            update = replace(algorithm, epochs=3).update(engine, sampled(engine, 6))
            assert max(m.values["clip_fraction"] for m in update.metrics if m.agent is not None) > 0, algorithm


@pytest.mark.parametrize("algorithm", [*CRITIC_FREE, PPO()], ids=lambda a: type(a).__name__)
def test_the_first_step_has_the_unclipped_gradient(algorithm):
    moved = []
    for clip in (algorithm.clip or (0.2, 0.2), None):
        engine = CriticEngine(network_engine(wordy_problem()))
        replace(algorithm, clip=clip, minibatches=1).update(engine, sampled(engine, 6))
        moved.append(weights_of(engine))
    assert torch.equal(*moved)


@pytest.mark.parametrize("level", ["trajectory", "turn"])
def test_with_one_turn_seeupo_and_gspo_are_the_same(level):
    problem = bandit(torch.rand(3, 8, generator=torch.Generator().manual_seed(0), dtype=F64), tokens_per_turn=3)
    options = {"clip": (0.02, 0.03), "normalize": "batch", "kl_coef": 0.1, "epochs": 2}
    one, other = network_engine(problem, STEP), network_engine(problem, STEP)
    trajectories = sampled(one, 8)
    first = SeeUPO(steps_per_turn=3, **options).update(one, trajectories, generator=torch.Generator().manual_seed(4))
    second = GSPO(minibatches=3, level=level, **options).update(
        other, trajectories, generator=torch.Generator().manual_seed(4)
    )
    torch.testing.assert_close(weights_of(one), weights_of(other), rtol=0, atol=1e-12)
    assert first.metrics[0].values["clip_fraction"] == second.metrics[0].values["clip_fraction"] > 0
    for mine, theirs in zip(first.trajectories, second.trajectories, strict=True):
        for one_turn, same_turn in zip(mine.credit.turns, theirs.credit.turns, strict=True):
            assert one_turn.ratio == pytest.approx(same_turn.ratio, abs=1e-12)
            assert one_turn.carried_before == same_turn.carried_before
            assert same_turn.carried_after is None


# The gradient at theta_k, on problems whose true gradient can be computed.


def moved_by(algorithm, engine, trajectories):
    before = weights_of(engine).clone()
    algorithm.update(engine, trajectories)
    return weights_of(engine) - before


def true_gradient(engine):
    value = engine.problem.expected_return(engine.policy.log_probs())
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(engine.policy.parameters().values()))])


def unit_engine(problem):
    return network_engine(problem, GradientAscent(1.0))


@pytest.mark.parametrize("problem", [ragged_problem(), wordy_problem()], ids=["ragged", "wordy"])
def test_dr_grpo_has_the_true_gradient_and_grpo_does_not(problem):
    engine = unit_engine(problem)
    true = true_gradient(engine)
    unbiased = GRPO(kl_coef=0.0, deviation_term=False, length_term=False, constant_length=1)
    torch.testing.assert_close(moved_by(unbiased, engine, engine.enumerate()), true, rtol=0, atol=1e-12)
    engine = unit_engine(problem)
    grpo = moved_by(GRPO(kl_coef=0.0), engine, engine.enumerate())
    assert torch.nn.functional.cosine_similarity(grpo, true, dim=0) < 0.9999


def test_gspo_without_normalization_has_the_true_gradient_per_token():
    engine = unit_engine(wordy_problem())  # every trajectory has four tokens
    true = true_gradient(engine)
    change = moved_by(GSPO(minibatches=1, normalize="none"), engine, engine.enumerate())
    torch.testing.assert_close(4 * change, true, rtol=0, atol=1e-12)


def test_reinforce_pp_has_the_true_gradient_up_to_scale():
    engine = unit_engine(wordy_problem())
    trajectories, true = engine.enumerate(), true_gradient(engine)
    batch = Batch(trajectories)
    spread = float((batch.counts * batch.advantages("none", "mean") ** 2).sum().sqrt())
    change = moved_by(ReinforcePP(kl_coef=0.0), engine, trajectories)
    torch.testing.assert_close(4 * spread * change, true, rtol=0, atol=1e-12)


def test_rloo_has_the_true_gradient_on_average_over_all_groups():
    problem = bandit(torch.rand(1, 2, 2, generator=torch.Generator().manual_seed(3), dtype=F64))
    engine = unit_engine(problem)
    true, paths = true_gradient(engine), engine.enumerate()
    mean = torch.zeros_like(true)
    for group in product(paths, repeat=3):
        members = []
        for number, path in enumerate(group):
            name = f"{number}"
            turns = tuple(replace(turn, trajectory=name) for turn in path.turns)
            members.append(replace(path, id=name, turns=turns, multiplicity=1.0))
        engine = unit_engine(problem)
        mean += math.prod(path.multiplicity for path in group) * moved_by(RLOO(), engine, members)
    torch.testing.assert_close(mean, true, rtol=0, atol=1e-12)


def test_rloo_is_reinforce_with_a_leave_one_out_baseline():
    engine = unit_engine(ragged_problem())
    trajectories = sampled(engine, 4)
    total = 0.0
    for trajectory in trajectories:
        others = [o.reward for o in trajectories if o.group == trajectory.group and o.id != trajectory.id]
        score = sum(token_logprobs(engine, turn).sum() for turn in trajectory.turns)
        total = total + (trajectory.reward - sum(others) / len(others)) * score / len(trajectories)
    gradients = torch.autograd.grad(total, list(engine.policy.parameters().values()))
    expected = torch.cat([gradient.flatten() for gradient in gradients])
    torch.testing.assert_close(moved_by(RLOO(), engine, trajectories), expected, rtol=0, atol=1e-12)


# PPO and its critic.


def perfect(engine):
    """The critic that knows the value of every node under the engine's policy."""
    problem, log_policy = engine.problem, engine.log_policy()
    probs = problem.path_probs(log_policy)
    critic = CriticEngine(engine)
    mass, value = torch.zeros(problem.num_nodes, dtype=F64), torch.zeros(problem.num_nodes, dtype=F64)
    for path in range(len(problem.nodes)):
        for node in problem.nodes[path][problem.nodes[path] >= 0].unique():
            mass[node] += probs[path]
            value[node] += probs[path] * problem.returns[path]
    critic.table = value / mass.clamp(min=1e-300)
    return critic


def steps_of(engine, trajectory):
    """The nodes that a trajectory passes, and the token that it chooses at each."""
    return [step for s in trajectory.turns for step in zip(engine.nodes(s), s.action_ids, strict=True)]


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_with_a_perfect_critic_advantages_are_the_true_ones(lam):
    engine = perfect(table_engine(wordy_problem()))
    batch = Batch(engine.enumerate())
    advantages, _, _, values = PPO(lam=lam).estimate(engine, batch, None)
    # The advantage of a token is the value behind it minus the value before it, on average over what follows.
    mean, mass = {}, {}
    for trajectory, row in zip(batch.trajectories, advantages, strict=True):
        steps = steps_of(engine, trajectory)
        for step, advantage in zip(steps, row.tolist(), strict=True):
            mean[step] = mean.get(step, 0.0) + trajectory.multiplicity * advantage
            mass[step] = mass.get(step, 0.0) + trajectory.multiplicity
    true = {}
    for trajectory, row in zip(batch.trajectories, values, strict=True):
        steps = steps_of(engine, trajectory)
        behind = [*row.tolist()[1:], trajectory.reward]
        for step, before, after in zip(steps, row.tolist(), behind, strict=True):
            true[step] = after - before
    assert len(true) > 10
    for step, advantage in true.items():
        assert mean[step] / mass[step] == pytest.approx(advantage, abs=1e-10)
        if lam == 0.0:
            assert mean[step] / mass[step] == pytest.approx(advantage, abs=1e-12)


def test_ppo_with_a_perfect_critic_has_the_true_gradient_up_to_scale():
    engine = perfect(unit_engine(wordy_problem()))
    trajectories, true = engine.enumerate(), true_gradient(engine)
    change = moved_by(PPO(minibatches=1), engine, trajectories)
    cosine = torch.nn.functional.cosine_similarity(change, true, dim=0)
    assert cosine == pytest.approx(1.0, abs=1e-12)


LIMITS = [StopReason.TURN_LIMIT, StopReason.CONTEXT_LIMIT, StopReason.FORCED]


def weights_after(algorithm, stop, sign):
    """The weights after an update on trajectories that all stopped for this reason, with rewards times `sign`."""
    engine = CriticEngine(network_engine(ragged_problem(), STEP))
    trajectories = [replace(t, stop=stop, reward=sign * t.reward) for t in sampled(engine, 6)]
    algorithm.update(engine, trajectories, generator=torch.Generator().manual_seed(0))
    return weights_of(engine)


@pytest.mark.parametrize("stop", LIMITS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_rewards_of_truncated_trajectories_count(name, stop):
    algorithm = ALGORITHMS[name]()
    same, flipped = (weights_after(algorithm, stop, sign) for sign in (1, -1))
    assert (same - flipped).abs().max() > 1e-3
    assert torch.equal(same, weights_after(algorithm, StopReason.ENVIRONMENT, 1))


@pytest.mark.parametrize("stop", LIMITS)
def test_bootstrapping_replaces_the_rewards_of_truncated_trajectories(stop):
    algorithm = PPO(bootstrap_truncated=True)
    assert torch.equal(*(weights_after(algorithm, stop, sign) for sign in (1, -1)))
    ended = StopReason.ENVIRONMENT
    assert torch.equal(weights_after(algorithm, ended, 1), weights_after(PPO(), ended, 1))


def test_ppo_by_hand():
    """Two trajectories of two turns of one token each; gamma = 1, lambda = 1/2; the second is truncated."""
    problem = bandit(torch.zeros(1, 2, 2, dtype=F64))
    engine = CriticEngine(table_engine(problem, GradientAscent(1e-9)))
    engine.table = torch.zeros(problem.num_nodes, dtype=F64)
    first, second = [t for t in engine.enumerate() if t.id in ("0", "3")]
    nodes = [engine.nodes(turn)[0] for t in (first, second) for turn in t.turns]
    engine.table[nodes[0]], engine.table[nodes[1]], engine.table[nodes[3]] = 0.5, 0.75, 0.125
    first = replace(first, reward=1.0, multiplicity=1.0, stop=StopReason.GOAL)
    second = replace(second, reward=0.625, multiplicity=1.0, stop=StopReason.TURN_LIMIT)
    batch = Batch([first, second])
    # First: delta = 0.75 - 0.5 and 1 - 0.75. Second: delta = 0.125 - 0.5 and 0.625 - 0.125.
    advantages, targets, returns, values = PPO(lam=0.5).estimate(engine, batch, None)
    assert advantages[0].tolist() == [0.25 + 0.5 * 0.25, 0.25]
    assert advantages[1].tolist() == [-0.375 + 0.5 * 0.5, 0.5]
    assert targets[1].tolist() == [0.5 - 0.125, 0.625]
    assert [row.tolist() for row in returns] == [[1.0, 1.0], [0.625, 0.625]]
    assert values[0].tolist() == [0.5, 0.75]
    # Bootstrapped, with V = 1/4 after the last token: the second delta of the second is 0.25 - 0.125.
    algorithm = PPO(lam=0.5, minibatches=1, bootstrap_truncated=True)
    advantages, targets, returns, _ = algorithm.estimate(engine, batch, None)
    assert advantages[0].tolist() == [0.25 + 0.5 * 0.25, 0.25]
    assert advantages[1].tolist() == [-0.375 + 0.5 * 0.125, 0.125]
    assert targets[1].tolist() == [0.5 - 0.3125, 0.25]
    assert [row.tolist() for row in returns] == [[1.0, 1.0], [0.25, 0.25]]
    update = algorithm.update(engine, [first, second])
    errors = [0.375**2, 0.25**2, 0.3125**2, 0.125**2]
    assert engine.losses == [pytest.approx(0.5 * sum(errors) / 4)]
    iteration_values = update.metrics[-1].values
    true_returns = torch.tensor([1.0, 1.0, 0.25, 0.25])
    errors = true_returns - torch.tensor([0.5, 0.75, 0.5, 0.125])
    expected = 1 - errors.var(correction=0) / true_returns.var(correction=0)
    assert iteration_values["explained_variance"] == pytest.approx(float(expected))
    assert iteration_values["critic_grad_norm"] == 0.5


def test_the_critics_loss_clips_values_far_from_the_old_ones():
    turn = Turn("a", 0, (0,), (5, 6, 7))
    loss = ValueLoss(
        returns={turn.key: torch.tensor([1.0, 1.0, 0.0])},
        old={turn.key: torch.tensor([0.0, 0.0, 0.0])},
        multiplicities={"a": 2.0},
        scale=0.25,
        clip=0.2,
    )
    values = torch.tensor([[0.1, 0.9, 0.5]])
    # Within the clip range: its error. Beyond it towards the return: the error at the clip. Beyond it away: its own.
    errors = 0.9**2 + 0.8**2 + 0.5**2
    assert float(loss(values, [turn])) == pytest.approx(2.0 * 0.25 * 0.5 * errors)
    assert float(replace(loss, clip=None)(values, [turn])) == pytest.approx(2 * 0.25 * 0.5 * (0.81 + 0.01 + 0.25))


def test_the_policy_is_not_updated_during_critic_warmup():
    engine = CriticEngine(network_engine(wordy_problem()))
    trajectories, before = sampled(engine, 4), weights_of(engine).clone()
    algorithm = PPO(critic_warmup=2)
    for engine.iteration in range(2):
        overall = algorithm.update(engine, trajectories, generator=torch.Generator().manual_seed(0)).metrics[-1].values
        assert overall["optimizer_steps"] == 0
        assert torch.equal(weights_of(engine), before)
    assert len(engine.losses) == 8
    engine.iteration = 2
    algorithm.update(engine, trajectories, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(weights_of(engine), before)


def test_ppo_without_a_critic_is_an_error():
    engine = table_engine(wordy_problem())
    with pytest.raises(TypeError, match='ExactEngine lacks the capability "critic"'):
        PPO().update(engine, sampled(engine, 4))


@pytest.mark.parametrize("algorithm", [PPO(kl_reward_coef=0.5), ReinforcePP(kl_reward_coef=0.5)], ids=["ppo", "rpp"])
def test_kl_in_the_reward_pulls_towards_the_reference(algorithm):
    """With equal rewards the KL is the only signal."""
    problem = wordy_problem()
    engine = CriticEngine(table_engine(problem, GradientAscent(2.0), seed=1))
    engine.table.zero_()
    with torch.no_grad():
        engine.policy.logits += torch.randn(engine.policy.logits.shape, generator=torch.Generator().manual_seed(9))

    def divergence():
        return float((engine.log_policy().exp() * (engine.log_policy() - engine._reference)).sum(-1).mean())

    before = divergence()
    algorithm = replace(algorithm, minibatches=1, kl_coef=0.0)
    for _ in range(30):
        algorithm.update(engine, [replace(t, reward=0.0) for t in engine.enumerate()])
    assert divergence() < 0.7 * before


# The weight of a trajectory, and what must not matter.


def gradients_by_trajectory(algorithm, trajectories):
    """Per trajectory, the sum over its tokens of |d objective / d log-prob| at theta_k, times their number."""
    results = {}

    class Catching:
        iteration, capabilities = 0, frozenset({"critic"})

        def logprobs(self, turns, *, policy="current"):
            return [torch.full((len(turn.action_ids),), -1.0, dtype=F64) for turn in turns]

        def values(self, trajectories):
            return [torch.zeros(sum(len(turn.action_ids) for turn in t.turns) + 1, dtype=F64) for t in trajectories]

        def step_critic(self, turns, loss, *, normalizer):
            return StepMetrics(None, {})

        def step(self, turns, objective, *, normalizer, agent=None):
            longest = max(len(turn.action_ids) for turn in turns)
            logprobs = torch.full((len(turns), longest), -1.0, dtype=F64, requires_grad=True)
            (objective(logprobs, None, turns).sum() / normalizer).backward()
            for turn, row in zip(turns, logprobs.grad, strict=True):
                results[turn.trajectory] = results.get(turn.trajectory, 0.0) + float(row.abs().sum())
            return StepMetrics(agent, {})

    algorithm.update(Catching(), trajectories)
    return results


def two_lengths():
    """A group of two trajectories: one turn of two tokens, and two turns of two tokens each."""

    def attempt(name, turns, reward):
        turns = tuple(Turn(name, turn, (0,), (0, 1)) for turn in range(turns))
        return Trajectory(id=name, group="one", task="one", turns=turns, reward=reward)

    return [attempt("short", 1, 1.0), attempt("long", 2, 0.0)]


@pytest.mark.parametrize(
    ("algorithm", "times"),
    [
        (GRPO(kl_coef=0.0), 1),  # a mean over a trajectory's tokens
        (GRPO(kl_coef=0.0, length_term=False), 2),  # a sum over them
        (GSPO(minibatches=1), 1),  # one ratio per trajectory, normalized by its length
        (GSPO(minibatches=1, level="turn"), 2),  # one per turn
        (RLOO(), 2),  # the score of a longer trajectory has more terms
        (SeeUPO(carry=False), 2),  # one term per turn
    ],
)
def test_weight_of_a_trajectory_with_twice_the_turns(algorithm, times):
    weights = gradients_by_trajectory(algorithm, two_lengths())
    assert weights["long"] / weights["short"] == pytest.approx(times)


def test_weight_of_a_trajectory_with_standardized_tokens():
    # Advantages of +1 (two tokens) and -1 (four tokens) become +sqrt 2 and -1 / sqrt 2.
    weights = gradients_by_trajectory(ReinforcePP(kl_coef=0.0), two_lengths())
    assert weights["short"] / weights["long"] == pytest.approx(2.0)  # means over tokens: 1.41 against 0.71
    weights = gradients_by_trajectory(PPO(minibatches=1, gamma=1.0, lam=1.0), two_lengths())
    assert weights["short"] / weights["long"] == pytest.approx(1.0)  # sums over tokens: 2 of 1.41, 4 of 0.71


@pytest.mark.parametrize("kind", ["sequence", "token", "trajectory"])
def test_padding_changes_nothing(kind):
    engine = network_engine(ragged_problem())
    batch = Batch(sampled(engine, 6))
    old = logprobs_by_key(engine, batch.turns)
    advantages = batch.advantages("batch", "mean")
    shared = {"old": old, "multiplicities": batch.multiplicities}
    objective = {
        "sequence": lambda: SequenceObjective(advantages=batch.per_turn(batch.turns, advantages), **shared),
        "token": lambda: TokenObjective(
            advantages=batch.per_token(batch.turns, advantages), scales=batch.by_id(advantages * 0 + 1), **shared
        ),
        "trajectory": lambda: TrajectoryObjective(advantages=batch.by_id(advantages), turns=batch.turns_of, **shared),
    }[kind]()
    exact = torch.nn.utils.rnn.pad_sequence([old[s.key] + 0.1 for s in batch.turns], batch_first=True)
    lonely = [objective(old[s.key][None] + 0.1, None, [s]) for s in batch.turns]
    torch.testing.assert_close(objective(exact, None, batch.turns), torch.cat(lonely), rtol=0, atol=1e-14)


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["ppo", "grpo", "gspo", "rloo", "reinforce_pp"]))
def test_the_order_of_trajectories_does_not_matter(random, name):
    algorithm = replace(ALGORITHMS[name](), minibatches=3, epochs=2)
    one, other = (CriticEngine(network_engine(ragged_problem(), STEP)) for _ in range(2))
    trajectories = sampled(one, 5)
    shuffled = list(trajectories)
    random.shuffle(shuffled)
    first = algorithm.update(one, trajectories, generator=torch.Generator().manual_seed(1))
    second = algorithm.update(other, shuffled, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(weights_of(one), weights_of(other), rtol=0, atol=1e-12)
    credits = {t.id: t.credit for t in second.trajectories}
    for trajectory in first.trajectories:
        assert trajectory.credit.advantage == pytest.approx(credits[trajectory.id].advantage, abs=1e-12)
        for mine, theirs in zip(trajectory.credit.turns, credits[trajectory.id].turns, strict=True):
            assert mine.ratio == pytest.approx(theirs.ratio, abs=1e-12)


@pytest.mark.parametrize("name", ["ppo", "grpo", "gspo", "rloo", "reinforce_pp"])
def test_trajectories_without_turns_or_tokens_are_accepted(name):
    engine = CriticEngine(network_engine(ragged_problem()))
    algorithm = replace(ALGORITHMS[name](), minibatches=1)
    trajectories = sampled(engine, 4)
    silent = replace(trajectories[0].turns[0], trajectory="silent", action_ids=())
    spoken = replace(trajectories[0].turns[0], trajectory="partly", index=1)
    odd = [
        replace(trajectories[0], id="partly", turns=(replace(silent, trajectory="partly"), spoken)),
        replace(trajectories[0], id="none", turns=()),
        replace(trajectories[0], id="silent", turns=(silent,)),
    ]
    update = replace(algorithm, epochs=2).update(engine, [*trajectories, *odd])
    assert all(math.isfinite(value) for metrics in update.metrics for value in metrics.values.values())
    assert torch.isfinite(weights_of(engine)).all()
    assert [t.id for t in update.trajectories[-2:]] == ["none", "silent"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_actions_without_tokens_cause_no_step(name):
    engine = CriticEngine(network_engine(ragged_problem()))
    before = weights_of(engine).clone()
    silent = [replace(t, turns=tuple(replace(turn, action_ids=()) for turn in t.turns)) for t in sampled(engine, 4)]
    update = ALGORITHMS[name]().update(engine, silent, generator=torch.Generator().manual_seed(0))
    assert update.metrics[-1].values["optimizer_steps"] == 0
    assert engine.losses == []
    assert torch.equal(weights_of(engine), before)


@pytest.mark.parametrize("name", ["ppo", "grpo", "gspo", "reinforce_pp"])
def test_the_scale_of_multiplicities_does_not_matter(name):
    algorithm = replace(ALGORITHMS[name](), minibatches=1, epochs=2)
    moved = []
    for scale in (1.0, 0.01):
        engine = CriticEngine(network_engine(wordy_problem(), STEP))
        trajectories = [replace(t, multiplicity=scale * t.multiplicity) for t in engine.enumerate()]
        algorithm.update(engine, trajectories)
        moved.append(weights_of(engine))
    torch.testing.assert_close(*moved, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": "alone"}, "group alone has one trajectory"),
        ({"multiplicity": 2.0}, r"multiplicity of trajectory .* = 2: leave-one-out"),
    ],
)
def test_rloo_rejects_groups_without_others(change, message):
    engine = network_engine(ragged_problem())
    first, *others = sampled(engine, 4)
    with pytest.raises(ValueError, match=message):
        RLOO().update(engine, [replace(first, **change), *others])


@pytest.mark.parametrize("algorithm", CRITIC_FREE, ids=lambda a: type(a).__name__)
def test_equal_rewards_cause_no_step(algorithm):
    engine = network_engine(ragged_problem())
    before = weights_of(engine).clone()
    trajectories = [replace(t, reward=0.3) for t in sampled(engine, 4)]
    update = replace(algorithm, kl_coef=0.0).update(engine, trajectories, generator=torch.Generator().manual_seed(0))
    assert update.metrics[-1].values["optimizer_steps"] == 0  # a step would decay weights, and momentum move them
    assert torch.equal(weights_of(engine), before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GRPO(constant_length=0), "constant_length = 0"),
        (lambda: GRPO(length_term="no"), "length_term = 'no'"),
        (lambda: GSPO(level="token"), "level = 'token'"),
        (lambda: GSPO(clip=(1.5, 0.1)), "clip"),
        (lambda: RLOO(epochs=0), "epochs = 0"),
        (lambda: ReinforcePP(kl_reward_coef=-1.0), "kl_reward_coef = -1.0"),
        (lambda: PPO(lam=1.5), "lam = 1.5"),
        (lambda: PPO(value_clip=-0.1), "value_clip = -0.1"),
        (lambda: PPO(critic_warmup=-1), "critic_warmup = -1"),
        (lambda: PPO(bootstrap_truncated="yes"), "bootstrap_truncated = 'yes'"),
    ],
)
def test_invalid_options_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_fractions_of_minibatches_are_drawn_in_each_iteration():
    engine, generator = network_engine(wordy_problem()), torch.Generator().manual_seed(0)
    batch = Batch(sampled(engine, 12))

    def steps(minibatches):
        return len(list(GRPO(minibatches=minibatches).step_batches(batch, batch.turns, generator)))

    counts = [steps(2.25) for _ in range(200)]
    assert set(counts) == {2, 3}
    assert 0.15 < counts.count(3) / 200 < 0.35
    assert {steps(3) for _ in range(5)} == {steps(3.0)} == {3}
    with pytest.raises(ValueError, match="minibatches"):
        GRPO(minibatches=0.5)
