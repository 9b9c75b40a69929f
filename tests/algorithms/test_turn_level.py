"""GiGPO, MT-GRPO and PPO per turn, against numbers worked out by hand and restatements of the published formulas."""

from dataclasses import replace

import pytest
import torch

from algorithms.examples import F64, ragged_problem, sampled, weights_of, wordy_problem
from algorithms.test_backbones import (
    CriticEngine,
    ascend,
    clipped,
    deviation,
    kl_and_entropy,
    moved_engine,
    stated_gae,
    token_logprobs,
)
from seeupo.algorithms import GRPO, MTGRPO, PPO, GiGPO
from seeupo.algorithms.common.batch import Batch, logprobs_by_key
from seeupo.algorithms.common.turn_credit import discounted_returns
from seeupo.types import StepMetrics, StopReason, Trajectory, Turn, turns_of

PROBLEMS = pytest.mark.parametrize("problem", [ragged_problem(), wordy_problem()], ids=["ragged", "wordy"])


class RecordingEngine:
    """An engine that has equal log-probs always and records the advantages of the objectives."""

    iteration, capabilities = 0, frozenset({"critic"})

    def __init__(self, values=None):
        self.values_of, self.advantages, self.losses = values or {}, {}, []

    def logprobs(self, turns, *, policy="current"):
        return [torch.zeros(len(turn.action_ids), dtype=F64) for turn in turns]

    def step(self, turns, objective, *, normalizer, agent=None):
        self.advantages |= {turn.key: torch.as_tensor(objective.advantages[turn.key]).tolist() for turn in turns}
        return StepMetrics(agent, {"grad_norm": 1.0})

    def values(self, trajectories):
        return [torch.tensor(self.values_of[each.id], dtype=F64) for each in trajectories]

    def step_critic(self, turns, loss, *, normalizer):
        self.losses.append(loss)
        return StepMetrics(None, {"grad_norm": 1.0, "critic_loss": 1.0})


def episode(name, outcome, steps, *, group="g", tokens=2):
    """A trajectory with (step reward, state) of each turn; the reward is the outcome plus all step rewards."""
    turns = tuple(
        Turn(name, t, (1,), (3,) * tokens, reward=reward, state_key=state) for t, (reward, state) in enumerate(steps)
    )
    total = outcome + sum(reward for reward, _ in steps)
    return Trajectory(name, group, "task", turns, total, outcome=outcome)


def first_advantages(algorithm, trajectories, **engine):
    recording = RecordingEngine(**engine)
    update = algorithm.update(recording, trajectories, generator=torch.Generator().manual_seed(0))
    return recording, update


def test_returns_discount_later_rewards_and_end_with_the_outcome():
    trajectory = episode("a", 1.0, [(0.5, "x"), (0.0, "y"), (0.25, "z")])
    assert discounted_returns(trajectory, 0.5) == [0.5 + 0.5 * 0.5 * 1.25, 0.5 * 1.25, 1.25]
    assert discounted_returns(replace(trajectory, outcome=None, reward=1.0), 0.5) == [0.25, 0.5, 1.0]
    assert discounted_returns(replace(trajectory, turns=()), 0.5) == []


def test_gigpo_compares_turns_in_the_same_state():
    """Worked out by hand: outcomes 1, 0, 0 have the mean 1/3 and the deviation sqrt(2)/3."""
    trajectories = [
        episode("a", 1.0, [(0.0, "start"), (0.0, "left")]),
        episode("b", 0.0, [(0.0, "start"), (0.0, "left"), (0.0, "lost")]),
        episode("c", 0.0, [(0.0, "start")]),
        episode("d", 0.0, [(0.0, "start")], group="other"),
    ]
    recording, update = first_advantages(GiGPO(kl_coef=0.0, gamma=0.5, state_weight=2.0), trajectories)
    high, low = 2**0.5, -(2**-0.5)  # of (1, 0, 0): also of the returns (0.5, 0, 0) of the start
    assert recording.advantages == {
        ("a", 0): pytest.approx([high + 2 * high] * 2),
        ("a", 1): pytest.approx([high + 2 * 1.0] * 2),  # 1 against 0
        ("b", 0): pytest.approx([low + 2 * low] * 2),
        ("b", 1): pytest.approx([low - 2 * 1.0] * 2),
        ("b", 2): pytest.approx([low] * 2),  # alone in its state
        ("c", 0): pytest.approx([low + 2 * low] * 2),
    }  # the other group has equal rewards and one state: no gradient
    values = update.metrics[-1].values
    assert values["turn_group_size"] == 7 / 4
    assert values["lone_turn_fraction"] == pytest.approx(2 / 7)


def test_gigpo_compares_no_turns_of_unknown_states():
    trajectories = [episode("a", 1.0, [(0.0, ""), (0.0, "")]), episode("b", 0.0, [(0.0, ""), (0.0, "")])]
    recording, update = first_advantages(GiGPO(kl_coef=0.0), trajectories)
    assert {tuple(row) for row in recording.advantages.values()} == {(1.0, 1.0), (-1.0, -1.0)}
    assert update.metrics[-1].values["lone_turn_fraction"] == 1.0


def test_gigpo_counts_step_rewards_in_the_returns():
    trajectories = [episode("a", 0.0, [(1.0, "s"), (0.0, "t")]), episode("b", 0.0, [(0.0, "s"), (1.0, "u")])]
    recording, _ = first_advantages(GiGPO(kl_coef=0.0, gamma=0.5, deviation_term=False), trajectories)
    # Rewards are equal, so the trajectories have no advantage; from "s" the returns are 1 and 0.5 * 1.
    assert recording.advantages == {("a", 0): [0.25] * 2, ("b", 0): [-0.25] * 2}


def test_mt_grpo_mixes_step_rewards_with_the_outcome():
    """Worked out by hand: step rewards 0.5, 0, 0 in turn 0; 0, 0.5 in turn 1; outcomes 1, 0, 0."""
    trajectories = [
        episode("a", 1.0, [(0.5, ""), (0.0, ""), (0.0, "")]),
        episode("b", 0.0, [(0.0, ""), (0.5, ""), (0.0, "")]),
        episode("c", 0.0, [(0.0, "")]),
    ]
    recording, update = first_advantages(MTGRPO(outcome_weight=0.5), trajectories)
    high, low = 2**0.5, -(2**-0.5)
    assert recording.advantages == {
        ("a", 0): pytest.approx([high + 0.5 * high] * 2),
        ("a", 1): pytest.approx([-1.0 + 0.5 * high] * 2),
        ("a", 2): pytest.approx([high] * 2),
        ("b", 0): pytest.approx([low + 0.5 * low] * 2),
        ("b", 1): pytest.approx([1.0 + 0.5 * low] * 2),
        ("b", 2): pytest.approx([low] * 2),
        ("c", 0): pytest.approx([low] * 2),  # its only turn is its last
    }
    assert update.trajectories[0].credit.advantage == pytest.approx(high)


def test_step_rewards_do_not_count_if_only_the_score_is_trained_on():
    trajectories = [
        replace(episode("a", 1.0, [(0.5, "s"), (0.0, "t")]), outcome=None, reward=1.0),
        replace(episode("b", 0.0, [(9.0, "s"), (9.0, "t")]), outcome=None, reward=0.0),
    ]
    for algorithm in (MTGRPO(), GiGPO(kl_coef=0.0, state_weight=0.0)):
        recording, _ = first_advantages(algorithm, trajectories)
        assert {key: row[0] for key, row in recording.advantages.items()} == pytest.approx(
            {("a", 0): 1.0, ("a", 1): 1.0, ("b", 0): -1.0, ("b", 1): -1.0}
        )


def test_turn_level_ppo_has_one_advantage_and_one_value_per_turn():
    """Worked out by hand: values 0.5 and 0.2 before the turns, rewards 0.1 and 0 + 1, gamma 0.5, lambda 0.5."""
    long = episode("a", 1.0, [(0.1, ""), (0.0, "")])
    short = episode("b", 0.0, [(0.0, "")], tokens=1)
    values = {"a": [0.5, 9.0, 0.2, 9.0, 9.0], "b": [0.4, 9.0]}
    algorithm = PPO(level="turn", gamma=0.5, lam=0.5, minibatches=1)
    batch = Batch([long, short])
    advantages, targets, returns, before = algorithm.estimate(RecordingEngine(values), batch, None)
    last = 1.0 - 0.2
    first = (0.1 + 0.5 * 0.2 - 0.5) + 0.25 * last
    assert [row.tolist() for row in advantages] == [pytest.approx([first, last]), pytest.approx([-0.4])]
    assert [row.tolist() for row in targets] == [pytest.approx([first + 0.5, 1.0]), pytest.approx([0.0], abs=1e-12)]
    assert returns[0].tolist() == pytest.approx([0.1 + 0.5 * 1.0, 1.0])
    assert [row.tolist() for row in before] == [[0.5, 0.2], [0.4]]

    recording, _ = first_advantages(algorithm, [long, short], values=values)
    mean = (first + last - 0.4) / 3
    spread = deviation([first, last, -0.4])
    assert recording.advantages["a", 1] == pytest.approx((last - mean) / spread)
    # The critic is trained at the first token of each turn only, in the mean over turns.
    row = torch.tensor([[0.7, 5.0], [0.3, 5.0], [0.4, 0.0]], dtype=F64)
    losses = recording.losses[0](row, turns_of([long, short])).tolist()
    targets = [first + 0.5, 1.0, 0.0]
    errors = [
        max((value - target) ** 2, (old + min(0.2, max(-0.2, value - old)) - target) ** 2)
        for value, old, target in zip((0.7, 0.3, 0.4), (0.5, 0.2, 0.4), targets, strict=True)
    ]
    assert losses == pytest.approx([2 / 3 * 0.5 * error for error in errors])


def test_token_level_ppo_has_step_rewards_at_the_ends_of_turns():
    trajectory = episode("a", 1.0, [(0.25, ""), (0.5, ""), (0.125, "")])
    without = replace(trajectory.turns[1], action_ids=())  # its reward counts for the turn before it
    trajectory = replace(trajectory, turns=(trajectory.turns[0], without, trajectory.turns[2]))
    values = {"a": [0.0] * 5}
    _, _, returns, _ = PPO(gamma=0.5).estimate(RecordingEngine(values), Batch([trajectory]), None)
    assert returns[0].tolist() == [0.5 * (0.75 + 0.25 * 1.125), 0.75 + 0.25 * 1.125, 0.5 * 1.125, 1.125]
    _, _, returns, _ = PPO(gamma=0.5, level="turn").estimate(RecordingEngine(values), Batch([trajectory]), None)
    assert returns[0].tolist() == [0.75 + 0.5 * 1.125, 1.125]


# Three steps on language-model-like policies, against the formulas as they are printed.


def with_step_rewards(trajectories, seed=3):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for each in trajectories:
        steps = torch.rand(len(each.turns), generator=generator, dtype=F64).tolist()
        turns = tuple(replace(turn, reward=step) for turn, step in zip(each.turns, steps, strict=True))
        made.append(replace(each, turns=turns, outcome=each.reward, reward=each.reward + sum(steps)))
    return made


def normalized(value, values):
    spread = deviation(values)
    return (value - sum(values) / len(values)) / spread if spread > 1e-8 else 0.0


def stated_gigpo(algorithm, trajectories):
    def step_return(trajectory, t):
        rewards = [turn.reward for turn in trajectory.turns]
        rewards[-1] += trajectory.outcome
        return sum(algorithm.gamma ** (k - t) * rewards[k] for k in range(t, len(rewards)))

    stated = {}
    for trajectory in trajectories:
        group = [other for other in trajectories if other.group == trajectory.group]
        episode_level = normalized(trajectory.reward, [other.reward for other in group])
        for t, turn in enumerate(trajectory.turns):
            in_state = [
                step_return(other, u)
                for other in group
                for u, same in enumerate(other.turns)
                if same.state_key == turn.state_key
            ]
            step_level = normalized(step_return(trajectory, t), in_state)
            stated[turn.key] = episode_level + algorithm.state_weight * step_level
    return stated


def stated_mt_grpo(algorithm, trajectories):
    stated = {}
    for trajectory in trajectories:
        group = [other for other in trajectories if other.group == trajectory.group]
        outcome = normalized(trajectory.outcome, [other.outcome for other in group])
        for t, turn in enumerate(trajectory.turns):
            at_turn = [other.turns[t].reward for other in group if len(other.turns) > t]
            last = t == len(trajectory.turns) - 1
            stated[turn.key] = (
                outcome if last else normalized(turn.reward, at_turn) + algorithm.outcome_weight * outcome
            )
    return stated


@PROBLEMS
@pytest.mark.parametrize(
    ("algorithm", "stated"),
    [
        (GiGPO(clip=(0.01, 0.02), state_weight=0.7, gamma=0.8), stated_gigpo),
        (GiGPO(kl_coef=0.0), stated_gigpo),
        (MTGRPO(clip=(0.01, 0.02), outcome_weight=0.6, kl_coef=0.1, entropy_coef=0.05), stated_mt_grpo),
    ],
    ids=["gigpo", "gigpo-defaults", "mt_grpo"],
)
def test_three_steps_follow_the_published_formula(algorithm, stated, problem):
    algorithm = replace(algorithm, epochs=3, minibatches=1)
    engine, twin = moved_engine(problem), moved_engine(problem)
    trajectories = with_step_rewards(sampled(engine, 6))
    algorithm.update(engine, trajectories)

    turns = turns_of(trajectories)
    old, reference = (logprobs_by_key(twin, turns, policy) for policy in ("current", "reference"))
    advantages = stated(algorithm, trajectories)
    for _ in range(3):
        total = 0.0
        for trajectory in trajectories:
            tokens = [
                clipped((new - before).exp(), advantages[turn.key], algorithm.clip)
                for turn in trajectory.turns
                for new, before in zip(token_logprobs(twin, turn), old[turn.key], strict=True)
            ]
            total = total + sum(tokens) / len(tokens) + kl_and_entropy(algorithm, twin, trajectory, reference)
        ascend(twin, total / len(trajectories))
    torch.testing.assert_close(weights_of(engine), weights_of(twin), rtol=0, atol=1e-11)


@PROBLEMS
@pytest.mark.parametrize("bootstrap_truncated", [False, True])
def test_three_steps_of_turn_level_ppo_follow_its_formula(problem, bootstrap_truncated):
    algorithm = PPO(
        level="turn", minibatches=1, epochs=3, clip=(0.02, 0.03), gamma=0.97, lam=0.9, kl_coef=0.1, entropy_coef=0.05,
        kl_reward_coef=0.2, bootstrap_truncated=bootstrap_truncated,
    )  # fmt: skip
    engine, twin = CriticEngine(moved_engine(problem)), CriticEngine(moved_engine(problem))
    trajectories = [
        replace(each, stop=StopReason.TURN_LIMIT if number % 3 == 0 else each.stop)
        for number, each in enumerate(with_step_rewards(sampled(engine, 6)))
    ]
    algorithm.update(engine, trajectories)

    turns = turns_of(trajectories)
    old, reference = (logprobs_by_key(twin, turns, policy) for policy in ("current", "reference"))
    advantages = {}
    for trajectory in trajectories:
        rewards = [turn.reward - 0.2 * float((old[turn.key] - reference[turn.key]).sum()) for turn in trajectory.turns]
        bootstrap = bootstrap_truncated and trajectory.stop is StopReason.TURN_LIMIT
        rewards[-1] += 0.0 if bootstrap else trajectory.outcome
        values = [float(twin.table[twin.nodes(turn)[0]]) for turn in trajectory.turns]
        row = stated_gae(rewards, values, twin.ends if bootstrap else 0.0, 0.97, 0.9)
        advantages |= {turn.key: value for turn, value in zip(trajectory.turns, row, strict=True)}
    everything = list(advantages.values())
    for _ in range(3):
        total = 0.0
        for trajectory in trajectories:
            for turn in trajectory.turns:
                ratio = (token_logprobs(twin, turn) - old[turn.key]).mean().exp()
                total = total + clipped(ratio, normalized(advantages[turn.key], everything), algorithm.clip)
            total = total + kl_and_entropy(algorithm, twin, trajectory, reference)
        ascend(twin, total / len(trajectories))
    torch.testing.assert_close(weights_of(engine), weights_of(twin), rtol=0, atol=1e-11)


@pytest.mark.parametrize("algorithm", [GiGPO(state_weight=0.0, kl_coef=0.04), MTGRPO(kl_coef=0.04)])
def test_without_turn_level_credit_they_are_grpo(algorithm):
    engine, other = moved_engine(wordy_problem()), moved_engine(wordy_problem())
    trajectories = sampled(engine, 6)
    replace(algorithm, minibatches=1).update(engine, trajectories)
    GRPO(kl_coef=0.04).update(other, trajectories)
    assert torch.equal(weights_of(engine), weights_of(other))


def test_with_one_token_per_turn_both_levels_of_ppo_have_equal_advantages():
    engine = CriticEngine(moved_engine(ragged_problem()))
    batch = Batch(with_step_rewards(sampled(engine, 6)))
    for rows in zip(*(PPO(level=level).estimate(engine, batch, None) for level in ("token", "turn")), strict=True):
        torch.testing.assert_close(*(torch.cat(each) for each in rows), rtol=0, atol=0)


def test_trajectories_without_turns_change_nothing():
    empty = Trajectory("e", "g", "task", (), 0.0, outcome=0.0)
    trajectories = [episode("a", 1.0, [(0.5, "s")]), empty]
    for algorithm in (GiGPO(kl_coef=0.0), MTGRPO(), PPO(level="turn", minibatches=1)):
        recording, _ = first_advantages(algorithm, trajectories, values={"a": [0.5, 0.1, 0.0]})
        assert list(recording.advantages) in ([("a", 0)], [])
        replace(algorithm, minibatches=1).update(RecordingEngine(), [empty])
