"""GiGPO, MT-GRPO and PPO per turn, composed of verl's functions with turns in place of sequences and tokens.

No public implementation of the three can be installed: verl-agent is not a package, and neither verl nor TRL contains
them. What they consist of can be compared: verl normalizes returns within groups, which may be turns of one state or
one index, its GAE runs over a table of turns, and its losses take any advantage per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo import core_algos

from peers.batches import RandomBatch, random_batch
from peers.checks_verl import ENTROPY, KL, NAME, WIDE, compare_steps
from peers.ledger import Ledger
from peers.table_engine import TableEngine, token_advantages
from seeupo.algorithms import MTGRPO, PPO, GiGPO

__all__ = ["CHECKS", "NAME"]


def with_step_rewards(batch: RandomBatch, seed: int) -> RandomBatch:
    """Return the batch with a step reward and one of three states for each turn; a reward is the sum of its parts."""
    generator = torch.Generator().manual_seed(seed)
    trajectories = []
    for each in batch.trajectories:
        steps = torch.randn(len(each.turns), generator=generator, dtype=torch.float64).tolist()
        states = torch.randint(3, (len(each.turns),), generator=generator).tolist()
        turns = tuple(
            replace(turn, reward=step, state_key=f"state {state}")
            for turn, step, state in zip(each.turns, steps, states, strict=True)
        )
        trajectories.append(replace(each, turns=turns, outcome=each.reward, reward=each.reward + sum(steps)))
    return replace(batch, trajectories=tuple(trajectories))


def normalized(values: Sequence[float], groups: Sequence[str], dtype: torch.dtype) -> Tensor:
    """Return verl's group advantage of each value, with our deviation, and 0 in groups of one or of equal values."""
    scores, ones = torch.tensor(values, dtype=dtype)[:, None], torch.ones(len(values), 1, dtype=dtype)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(scores, ones, np.array(groups))
    factor = torch.zeros(len(values), dtype=dtype)
    for group in dict.fromkeys(groups):
        members = [n for n, other in enumerate(groups) if other == group]
        found = scores[members, 0]
        if len(members) > 1 and not (found == found[0]).all():
            factor[members] = (found.std(correction=1) + 1e-6) / found.std(correction=0)
    return theirs[:, 0] * factor


def over_rows(batch: RandomBatch, per_turn: Tensor) -> Tensor:
    """Return a value of each turn, in the order of `batch.columns`, at all its tokens: [N, L]."""
    return batch.over_rows(
        {
            key: value.expand(columns.stop - columns.start)
            for (key, columns), value in zip(batch.columns.items(), per_turn, strict=True)
        }
    )


def of_trajectories(batch: RandomBatch, values: Sequence[float]) -> Tensor:
    """Return verl's group advantage of each trajectory's value, for each of its turns."""
    found = normalized(values, batch.groups, batch.mask.dtype)
    return torch.stack([found[batch.row[name]] for name, _ in batch.columns])


def turns_of(batch: RandomBatch) -> list[tuple[str, int]]:
    return list(batch.columns)


def check_gigpo(ledger: Ledger, seed: int) -> None:
    batch = with_step_rewards(random_batch(seed, ledger.dtype, max_turns=3, empty=True), seed)
    returns, states = [], []
    for name, t in turns_of(batch):
        trajectory = batch.trajectories[batch.row[name]]
        rewards = [turn.reward for turn in trajectory.turns]
        rewards[-1] += trajectory.outcome or 0.0
        returns.append(sum(0.9 ** (later - t) * rewards[later] for later in range(t, len(rewards))))
        states.append(f"{trajectory.group} {trajectory.turns[t].state_key}")
    totals = [trajectory.reward for trajectory in batch.trajectories]
    theirs = of_trajectories(batch, totals) + 0.7 * normalized(returns, states, ledger.dtype)
    for terms in ({"kl_coef": 0.0}, {"kl_coef": KL, "entropy_coef": ENTROPY}):
        engine = TableEngine(batch)
        GiGPO(epochs=2, minibatches=1, clip=WIDE, gamma=0.9, state_weight=0.7, **terms).update(
            engine, batch.trajectories
        )
        advantages = over_rows(batch, theirs)
        what = "GiGPO, with KL and entropy" if terms["kl_coef"] else "GiGPO"
        ledger.compare(f"{what}: advantages", token_advantages(batch, engine.steps[0].objective), advantages)
        compare_steps(ledger, what, engine.steps, batch, advantages, clip=WIDE, **terms)


def check_mt_grpo(ledger: Ledger, seed: int) -> None:
    batch = with_step_rewards(random_batch(seed, ledger.dtype, max_turns=3, empty=True), seed)
    places = [(batch.trajectories[batch.row[name]], t) for name, t in turns_of(batch)]
    steps = normalized(
        [trajectory.turns[t].reward for trajectory, t in places],
        [f"{trajectory.group} {t}" for trajectory, t in places],
        ledger.dtype,
    )
    outcomes = of_trajectories(batch, [trajectory.outcome or 0.0 for trajectory in batch.trajectories])
    last = torch.tensor([t == len(trajectory.turns) - 1 for trajectory, t in places])
    theirs = torch.where(last, outcomes, steps + 0.6 * outcomes)
    for terms in ({"kl_coef": 0.0}, {"kl_coef": KL, "entropy_coef": ENTROPY}):
        engine = TableEngine(batch)
        MTGRPO(epochs=2, minibatches=1, clip=WIDE, outcome_weight=0.6, **terms).update(engine, batch.trajectories)
        advantages = over_rows(batch, theirs)
        what = "MT-GRPO, with KL and entropy" if terms["kl_coef"] else "MT-GRPO"
        ledger.compare(f"{what}: advantages", token_advantages(batch, engine.steps[0].objective), advantages)
        compare_steps(ledger, what, engine.steps, batch, advantages, clip=WIDE, **terms)


def check_turn_level_ppo(ledger: Ledger, seed: int) -> None:
    batch = with_step_rewards(random_batch(seed, ledger.dtype, max_turns=3, empty=True), seed)
    first = {key: (batch.row[key[0]], columns.start) for key, columns in batch.columns.items()}
    shape = (len(batch.trajectories), 3)
    rewards, mask, values, moved = (torch.zeros(shape, dtype=ledger.dtype) for _ in range(4))
    for (_, t), (row, column) in first.items():
        trajectory = batch.trajectories[row]
        rewards[row, t] = trajectory.turns[t].reward
        if t == len(trajectory.turns) - 1:
            rewards[row, t] += trajectory.outcome or 0.0
        mask[row, t], values[row, t], moved[row, t] = 1, batch.values[row, column], batch.moved_values[row, column]
    whitened, returns = core_algos.compute_gae_advantage_return(rewards, values, mask, 0.97, 0.9)
    inside = (returns - values)[mask.bool()]
    theirs = whitened * mask * (inside.var(correction=1) + 1e-8).sqrt() / inside.std(correction=0)

    engine = TableEngine(batch)
    options = {"clip": WIDE, "kl_coef": KL, "entropy_coef": ENTROPY}
    PPO(level="turn", gamma=0.97, lam=0.9, epochs=2, minibatches=1, **options).update(engine, batch.trajectories)
    advantages = over_rows(batch, torch.stack([theirs[row, t] for (_, t), (row, _) in first.items()]))
    rows, turns_mask = batch.turns()
    compare_steps(
        ledger, "PPO per turn", engine.steps, batch, advantages, loss="gspo", rows=rows, mask=turns_mask, **options
    )
    for step, table in zip(engine.critic_steps, (values, moved), strict=True):
        leaf = table.clone().requires_grad_()
        loss, _ = core_algos.compute_value_loss(leaf, returns, values, mask, 0.2, "token-mean")
        ledger.compare("PPO per turn, critic: loss", step.loss, loss)
        gradient = torch.autograd.grad(loss, leaf)[0]
        ours = torch.zeros_like(gradient)
        for (_, t), (row, column) in first.items():
            ours[row, t] = step.gradient[row, column]
        ledger.compare("PPO per turn, critic: gradient", ours, gradient)
        assert (step.gradient != 0).sum() <= len(first), "the critic is trained at the first token of a turn only"


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
