"""Comparison with TRL: scoring and losses of its GRPOTrainer and RLOOTrainer. TRL 1.16 has no PPO trainer.

TRL needs groups of one size and at least one action per trajectory. As in checks_verl.py, its losses are computed from
its own advantages, corrected by the known relations only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from peers.batches import RandomBatch, random_batch
from peers.ledger import Ledger
from peers.table_engine import Step, TableEngine, advantages_of, token_advantages
from peers.trl_trainers import BatchGRPO, BatchRLOO
from seeupo.algorithms import GRPO, GSPO, PPO, RLOO, ReinforcePP, SeeUPO
from seeupo.core.ratios import k3

NAME = f"TRL {version('trl')}"
WIDE, NARROW = (0.1, 0.15), (3e-4, 4e-4)
KL, ENTROPY = 0.3, 0.2


def groups_of_four(ledger: Ledger, seed: int, **options: Any) -> RandomBatch:
    return random_batch(seed, ledger.dtype, sizes=(4, 4, 4, 4), **options)


def compare_steps(ledger: Ledger, what: str, steps: Sequence[Step], trainer: Any, inputs: dict[str, Any]) -> None:
    """Compare both steps: at theta_k, where every ratio is 1, and at the second policy."""
    assert len(steps) == 2, f"{what}: {len(steps)} steps"
    for step, logits in zip(steps, (trainer.batch.before, trainer.batch.after), strict=True):
        loss, gradient = trainer.loss_and_gradient(inputs, logits)
        ledger.compare(f"{what}: loss", step.loss, loss)
        ledger.compare(f"{what}: gradient", step.gradient, gradient)


def score(ledger: Ledger, trainer: BatchGRPO, recorded: Tensor) -> dict[str, Any]:
    """Return TRL's loss inputs, with advantages rescaled to our deviation and compared with those of the update."""
    batch, inputs = trainer.batch, trainer.score()
    what, deviation = f"GRPO, advantages (scale_rewards={trainer.scale_rewards})", batch.group_deviation()
    spread = deviation > 0
    assert (recorded[~spread] == 0).all(), "groups without spread should have advantages of exactly 0"
    size, factor = trainer.num_generations, torch.ones_like(deviation)
    if trainer.scale_rewards == "group":
        unbiased = deviation * (size / (size - 1)) ** 0.5
        factor = (unbiased + 1e-4) / torch.where(spread, deviation, 1.0)
    elif trainer.scale_rewards == "batch":  # TRL: deviation of the rewards; ours: of the advantages
        centered = batch.rewards - batch.rewards.view(-1, size).mean(1).repeat_interleave(size)
        factor = (batch.rewards.std(correction=1) + 1e-4) / centered.std(correction=0)
    # With equal rewards TRL's advantages are rounding errors divided by 1e-4.
    assert inputs["advantages"][~spread].abs().max() <= 4 * torch.finfo(ledger.dtype).eps / 1e-4
    inputs["advantages"] = torch.where(spread, inputs["advantages"] * factor, 0.0).to(batch.mask)
    ledger.compare(what, recorded, inputs["advantages"])
    return inputs


def check_grpo(ledger: Ledger, seed: int) -> None:
    for turns in (1, 3):
        batch = groups_of_four(ledger, seed, max_turns=turns)
        for kl in (0.0, KL):
            engine, trainer = TableEngine(batch), BatchGRPO(batch, loss_type="grpo", beta=kl)
            update = GRPO(epochs=2, kl_coef=kl).update(engine, batch.trajectories)
            inputs = score(ledger, trainer, advantages_of(update.trajectories, batch.mask))
            compare_steps(ledger, "GRPO, with KL" if kl else "GRPO", engine.steps, trainer, inputs)


def check_dr_grpo(ledger: Ledger, seed: int) -> None:
    batch = groups_of_four(ledger, seed, max_turns=3)
    for kl in (0.0, KL):
        engine = TableEngine(batch)
        trainer = BatchGRPO(batch, loss_type="dr_grpo", scale_rewards="none", max_completion_length=50, beta=kl)
        algorithm = GRPO(kl_coef=kl, deviation_term=False, length_term=False, constant_length=50, epochs=2)
        update = algorithm.update(engine, batch.trajectories)
        inputs = score(ledger, trainer, advantages_of(update.trajectories, batch.mask))
        compare_steps(ledger, "Dr. GRPO, with KL" if kl else "Dr. GRPO", engine.steps, trainer, inputs)


def check_kl_times_ratio(ledger: Ledger, seed: int) -> None:
    """By default TRL multiplies each token's k3 by its ratio, which has a gradient even at 1."""
    batch = groups_of_four(ledger, seed, max_turns=3)
    engine = TableEngine(batch)
    trainer = BatchGRPO(batch, loss_type="grpo", beta=KL, use_bias_correction_kl=True)
    update = GRPO(epochs=2, kl_coef=KL).update(engine, batch.trajectories)
    inputs = score(ledger, trainer, advantages_of(update.trajectories, batch.mask))
    for step, logits in zip(engine.steps, (batch.before, batch.after), strict=True):
        leaf = logits.clone().requires_grad_()
        logprobs, old, reference = (batch.logprobs(table) for table in (leaf, batch.before, batch.reference))
        more = torch.where(batch.mask > 0, k3(logprobs, reference) * (logprobs - old).expm1(), 0.0)
        more = KL * (more.sum(1) / batch.mask.sum(1)).mean()
        loss, gradient = trainer.loss_and_gradient(inputs, logits)
        ledger.compare("GRPO, KL times TRL's ratio: loss", step.loss + more.detach(), loss)
        added = torch.autograd.grad(more, leaf)[0]
        ledger.compare("GRPO, KL times TRL's ratio: gradient", step.gradient + added, gradient)


def check_entropy(ledger: Ledger, seed: int) -> None:
    """TRL averages entropies over all tokens of the batch, we average over each trajectory's tokens first."""
    batch = groups_of_four(ledger, seed, max_turns=3)
    engine = TableEngine(batch)
    trainer = BatchGRPO(batch, loss_type="grpo", beta=KL, entropy_coef=ENTROPY)
    update = GRPO(epochs=2, kl_coef=KL, entropy_coef=ENTROPY).update(engine, batch.trajectories)
    inputs = score(ledger, trainer, advantages_of(update.trajectories, batch.mask))
    for step, logits in zip(engine.steps, (batch.before, batch.after), strict=True):
        leaf = logits.clone().requires_grad_()
        entropies = batch.entropies(leaf) * batch.mask
        more = (entropies.sum(1) / batch.mask.sum(1)).mean() - entropies.sum() / batch.mask.sum()
        loss, gradient = trainer.loss_and_gradient(inputs, logits)
        ledger.compare("GRPO, with TRL's mean of entropies: loss", step.loss + ENTROPY * more.detach(), loss)
        added = torch.autograd.grad(ENTROPY * more, leaf)[0]
        ledger.compare("GRPO, with TRL's mean of entropies: gradient", step.gradient + added, gradient)


def check_gspo(ledger: Ledger, seed: int) -> None:
    options = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    for turns in (1, 3):
        batch = groups_of_four(ledger, seed, max_turns=turns)
        for low, high in (WIDE, NARROW):
            for kl in (0.0, KL):
                for normalize in ("group", "batch"):
                    engine = TableEngine(batch)
                    trainer = BatchGRPO(
                        batch, beta=kl, epsilon=low, epsilon_high=high, scale_rewards=normalize, **options
                    )
                    algorithm = GSPO(clip=(low, high), epochs=2, minibatches=1, kl_coef=kl, normalize=normalize)
                    update = algorithm.update(engine, batch.trajectories)
                    inputs = score(ledger, trainer, advantages_of(update.trajectories, batch.mask))
                    compare_steps(ledger, "GSPO, with KL" if kl else "GSPO", engine.steps, trainer, inputs)


def check_seeupo_with_one_turn(ledger: Ledger, seed: int) -> None:
    batch = groups_of_four(ledger, seed)
    engine = TableEngine(batch)
    trainer = BatchGRPO(
        batch,
        loss_type="grpo",
        importance_sampling_level="sequence",
        scale_rewards="batch",
        beta=KL,
        epsilon=WIDE[0],
        epsilon_high=WIDE[1],
    )
    update = SeeUPO(clip=WIDE, epochs=2, kl_coef=KL).update(engine, batch.trajectories)
    inputs = score(ledger, trainer, advantages_of(update.trajectories, batch.mask))
    compare_steps(ledger, "SeeUPO with one turn, as GSPO", engine.steps, trainer, inputs)


def check_rloo(ledger: Ledger, seed: int) -> None:
    batch = groups_of_four(ledger, seed)
    for clip, (low, high) in (((0.2, 0.3), (0.2, 0.3)), (None, (1.0, 1e9))):
        engine, trainer = TableEngine(batch), BatchRLOO(batch, beta=0.0, epsilon=low, epsilon_high=high)
        update = RLOO(clip=clip, epochs=2).update(engine, batch.trajectories)
        inputs = trainer.score()
        # With equal rewards TRL's advantages may differ from 0 by a rounding error.
        ledger.compare("RLOO, advantages", advantages_of(update.trajectories, batch.mask), inputs["advantages"])
        compare_steps(ledger, "RLOO" if clip is None else "RLOO, clipped", engine.steps, trainer, inputs)


def check_rloo_with_kl_in_the_reward(ledger: Ledger, seed: int) -> None:
    """TRL subtracts the KL from the reward, we add a term to the loss; with TRL's rewards both are equal."""
    batch = groups_of_four(ledger, seed)
    kl = ((batch.logprobs(batch.before) - batch.logprobs(batch.reference)) * batch.mask).sum(1)
    shaped = (batch.rewards - 0.05 * kl).tolist()
    engine, trainer = TableEngine(batch), BatchRLOO(batch, beta=0.05, epsilon=0.2, epsilon_high=0.2)
    rewarded = [replace(t, reward=reward) for t, reward in zip(batch.trajectories, shaped, strict=True)]
    RLOO(clip=(0.2, 0.2), epochs=2).update(engine, rewarded)
    compare_steps(ledger, "RLOO, KL in the reward", engine.steps, trainer, trainer.score())


def check_groups_of_one_are_rejected(ledger: Ledger, seed: int) -> None:
    batch = random_batch(seed, ledger.dtype, sizes=(1, 1), equal=())
    for trainer in (BatchGRPO, BatchRLOO):
        message = ""
        try:
            trainer(batch)
        except ValueError as error:
            message = str(error)
        assert "at least 2 generations" in message, f"{trainer.__name__} should reject groups of one: {message}"


def check_token_level_objectives(ledger: Ledger, seed: int) -> None:
    """TRL accepts token-level advantages from trainers built on it: the losses of PPO and REINFORCE++.

    It does not compute such advantages, so these are ours; checks_verl.py compares them.
    """
    batch = groups_of_four(ledger, seed, max_turns=3)
    both = {"kl_coef": KL, "entropy_coef": ENTROPY}
    for what, algorithm, loss_type in (
        ("PPO, policy (bnpo)", PPO(epochs=2, minibatches=1), "bnpo"),
        ("PPO, policy (dapo)", PPO(epochs=2, minibatches=1), "dapo"),
        ("PPO, policy with KL and entropy (bnpo)", PPO(epochs=2, minibatches=1, **both), "bnpo"),
        ("PPO, policy with KL and entropy (dapo)", PPO(epochs=2, minibatches=1, **both), "dapo"),
        ("REINFORCE++", ReinforcePP(epochs=2, kl_coef=0.0), "grpo"),
        ("REINFORCE++, with KL", ReinforcePP(epochs=2, kl_coef=KL), "grpo"),
    ):
        engine = TableEngine(batch)
        trainer = BatchGRPO(batch, loss_type=loss_type, beta=algorithm.kl_coef, entropy_coef=algorithm.entropy_coef)
        algorithm.update(engine, batch.trajectories)
        inputs = trainer.score()
        length = inputs["completion_ids"].shape[1]
        inputs["advantages"] = token_advantages(batch, engine.steps[0].objective)[:, :length]
        compare_steps(ledger, what, engine.steps, trainer, inputs)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
