"""Comparison with verl: `verl.trainer.ppo.core_algos`.

verl's losses are computed from verl's advantages, corrected by the known relations only. README.md gives
the reason for each relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

from peers.batches import RandomBatch, random_batch
from peers.ledger import Ledger
from peers.table_engine import Step, TableEngine, advantages_of, token_advantages
from seeupo.algorithms import GRPO, GSPO, PPO, RLOO, ReinforcePP, SeeUPO
from seeupo.algorithms.ppo import TRUNCATED
from seeupo.core.advantages import gae
from seeupo.core.ratios import k3

NAME = f"verl {version('verl')}"
NO_DUAL_CLIP = 1e9
WIDE, NARROW = (0.1, 0.15), (3e-4, 4e-4)
KL, ENTROPY = 0.3, 0.2


def loss_and_gradient(
    batch: RandomBatch,
    logits: Tensor,
    advantages: Tensor,
    *,
    loss: str = "vanilla",
    aggregate: str = "seq-mean-token-mean",
    clip: tuple[float, float] = (0.2, 0.2),
    dual_clip: float = NO_DUAL_CLIP,
    constant: int | None = None,
    rows: Tensor | None = None,
    mask: Tensor | None = None,
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return verl's loss at these logits and its gradient, combined as in its actor.

    `rows` [S] and `mask` [S, L] select the sequences; the default is all trajectories. Means over sequences are divided
    by the number of trajectories. The KL and entropy terms are aggregated like the policy's loss.
    """
    logits = logits.clone().requires_grad_()
    rows = torch.arange(len(batch.mask)) if rows is None else rows
    mask = batch.mask[rows] if mask is None else mask
    shared = {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": len(batch.trajectories)}
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_low=clip[0],
        clip_ratio_high=clip[1],
        clip_ratio_c=dual_clip,
        global_batch_info={**shared, "loss_scale_factor": constant},
    )
    logprobs = batch.logprobs(logits)
    value, _ = core_algos.get_policy_loss_fn(loss)(
        old_log_prob=batch.logprobs(batch.before)[rows],
        log_prob=logprobs[rows],
        advantages=advantages[rows],
        response_mask=mask,
        loss_agg_mode=aggregate,
        config=config,
    )
    if kl_coef:
        kl = core_algos.kl_penalty(logprobs, batch.logprobs(batch.reference), "low_var_kl")[rows]
        value = value + kl_coef * core_algos.agg_loss(kl, mask, aggregate, **config.global_batch_info)
    if entropy_coef:
        entropies = batch.entropies(logits)[rows]
        value = value - entropy_coef * core_algos.agg_loss(entropies, mask, aggregate, **config.global_batch_info)
    return value.detach(), torch.autograd.grad(value, logits)[0]


def compare_steps(
    ledger: Ledger, what: str, steps: Sequence[Step], batch: RandomBatch, *rest: Any, **options: Any
) -> None:
    """Compare both steps: at theta_k, where every ratio is 1, and at the second policy."""
    assert len(steps) == 2, f"{what}: {len(steps)} steps"
    for step, logits in zip(steps, (batch.before, batch.after), strict=True):
        loss, gradient = loss_and_gradient(batch, logits, *rest, **options)
        ledger.compare(f"{what}: loss", step.loss, loss)
        ledger.compare(f"{what}: gradient", step.gradient, gradient)


def index(batch: RandomBatch) -> np.ndarray:
    return np.array(batch.groups)


def scores(batch: RandomBatch) -> Tensor:
    """Return each reward at the last action token, as in verl."""
    return batch.at_last_action(batch.rewards)


def grpo_advantages(ledger: Ledger, batch: RandomBatch, recorded: Tensor) -> Tensor:
    """Return verl's advantages [N, L], rescaled to our deviation and compared with those of the update."""
    deviation, sizes = batch.group_deviation(), batch.group_sizes()
    spread = deviation > 0  # False in groups of one or of equal rewards, where ours are exactly 0
    unbiased = deviation * (sizes / (sizes - 1).clamp(min=1)).sqrt()
    factor = torch.where(spread, (unbiased + 1e-6) / deviation.where(spread, torch.tensor(1.0).to(deviation)), 0.0)
    assert (recorded[~spread] == 0).all(), "groups without spread should have advantages of exactly 0"
    corrected = torch.zeros_like(batch.mask)
    for name in ("grpo_vectorized", "grpo"):  # the first always computes in float32
        theirs, _ = core_algos.get_adv_estimator_fn(name)(scores(batch), batch.mask, index(batch))
        corrected = (theirs * factor[:, None]).to(batch.mask)
        ledger.compare(f"GRPO, advantages ({name})", recorded[:, None] * batch.mask, corrected)
        # Groups of one: the reward itself. Equal rewards: rounding errors divided by 1e-6.
        alone = (sizes == 1)[:, None] * batch.mask / (1 + 1e-6)
        ledger.compare(
            "GRPO, verl's advantages in groups of one", alone * batch.rewards[:, None], (theirs * (alone > 0)).to(alone)
        )
        equal = (~spread & (sizes > 1))[:, None] * batch.mask
        assert (theirs * equal).abs().max() <= 4 * torch.finfo(torch.float32 if "_" in name else equal.dtype).eps / 1e-6
    return corrected


def check_grpo(ledger: Ledger, seed: int) -> None:
    for turns in (1, 3):
        batch = random_batch(seed, ledger.dtype, sizes=(4, 3, 4, 1, 2), max_turns=turns, empty=True)
        for terms in ({"kl_coef": 0.0}, {"kl_coef": KL, "entropy_coef": ENTROPY}):
            engine = TableEngine(batch)
            update = GRPO(epochs=2, **terms).update(engine, batch.trajectories)
            advantages = grpo_advantages(ledger, batch, advantages_of(update.trajectories, batch.mask))
            what = "GRPO, with KL and entropy" if terms["kl_coef"] else "GRPO"
            compare_steps(ledger, what, engine.steps, batch, advantages, **terms)


def check_dr_grpo(ledger: Ledger, seed: int) -> None:
    batch = random_batch(seed, ledger.dtype, max_turns=3, empty=True)
    for terms in ({"kl_coef": 0.0}, {"kl_coef": KL, "entropy_coef": ENTROPY}):
        engine = TableEngine(batch)
        algorithm = GRPO(deviation_term=False, length_term=False, constant_length=50, epochs=2, **terms)
        update = algorithm.update(engine, batch.trajectories)
        theirs, _ = core_algos.compute_grpo_outcome_advantage(
            scores(batch), batch.mask, index(batch), norm_adv_by_std_in_grpo=False
        )
        recorded = advantages_of(update.trajectories, batch.mask)
        assert (recorded[batch.group_deviation() == 0] == 0).all(), "equal rewards should give exactly 0"
        ledger.compare("Dr. GRPO, advantages", recorded[:, None] * batch.mask, theirs)
        what = "Dr. GRPO, with KL and entropy" if terms["kl_coef"] else "Dr. GRPO"
        options = {"aggregate": "seq-mean-token-sum-norm", "constant": 50, **terms}
        compare_steps(ledger, what, engine.steps, batch, theirs, **options)


def check_dual_clip(ledger: Ledger, seed: int) -> None:
    """verl also clips a ratio above 3 of a token with negative advantage; we and the papers do not."""
    batch = random_batch(seed, ledger.dtype, max_turns=2)
    engine = TableEngine(batch)
    update = GRPO(kl_coef=0.0, epochs=2).update(engine, batch.trajectories)
    advantages = grpo_advantages(ledger, batch, advantages_of(update.trajectories, batch.mask))
    theirs, _ = loss_and_gradient(batch, batch.after, advantages, dual_clip=3.0)
    ratio = (batch.logprobs(batch.after) - batch.logprobs(batch.before)).exp()
    beyond = torch.where((advantages < 0) & (batch.mask > 0), (ratio - 3).clamp(min=0) * -advantages, 0.0)
    cut = (beyond.sum(1) / batch.mask.sum(1)).mean()
    ledger.compare("GRPO, with verl's dual clip: loss", engine.steps[1].loss - cut, theirs)


def check_gspo(ledger: Ledger, seed: int) -> None:
    for turns in (1, 3):
        batch = random_batch(seed, ledger.dtype, max_turns=turns, empty=True)
        by_turn = dict(zip(("rows", "mask"), batch.turns(), strict=True))
        for clip in (WIDE, NARROW):
            for terms in ({}, {"kl_coef": KL, "entropy_coef": ENTROPY}):
                for level, sequences in (("trajectory", {}), ("turn", by_turn)):
                    engine = TableEngine(batch)
                    algorithm = GSPO(level=level, clip=clip, epochs=2, minibatches=1, **terms)
                    update = algorithm.update(engine, batch.trajectories)
                    advantages = grpo_advantages(ledger, batch, advantages_of(update.trajectories, batch.mask))
                    what = f"GSPO per {level}{', with KL and entropy' if terms else ''}"
                    compare_steps(
                        ledger, what, engine.steps, batch, advantages, loss="gspo", clip=clip, **sequences, **terms
                    )


def check_seeupo_with_one_turn(ledger: Ledger, seed: int) -> None:
    batch = random_batch(seed, ledger.dtype)
    engine = TableEngine(batch)
    algorithm = SeeUPO(normalize="group", clip=WIDE, epochs=2, kl_coef=KL)
    update = algorithm.update(engine, batch.trajectories)
    advantages = grpo_advantages(ledger, batch, advantages_of(update.trajectories, batch.mask))
    what = "SeeUPO with one turn, as GSPO"
    compare_steps(ledger, what, engine.steps, batch, advantages, loss="gspo", clip=WIDE, kl_coef=KL)


def check_rloo(ledger: Ledger, seed: int) -> None:
    batch = random_batch(seed, ledger.dtype, max_turns=3, empty=True)
    engine = TableEngine(batch)
    update = RLOO().update(engine, batch.trajectories)
    recorded = advantages_of(update.trajectories, batch.mask)
    assert (recorded[batch.group_deviation() == 0] == 0).all(), "equal rewards should give exactly 0"
    theirs = recorded
    for name in ("rloo", "rloo_vectorized"):
        theirs, _ = core_algos.get_adv_estimator_fn(name)(scores(batch), batch.mask, index(batch))
        ledger.compare(f"RLOO, advantages ({name})", recorded[:, None] * batch.mask, theirs)
    # REINFORCE has no ratio: the gradient at theta_k is the same, the loss is not.
    for loss in ("vanilla", "reinforce"):
        if loss == "vanilla":
            _, gradient = loss_and_gradient(batch, batch.before, theirs, aggregate="seq-mean-token-sum")
        else:
            logits = batch.before.clone().requires_grad_()
            config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True)
            config.global_batch_info["global_batch_size"] = len(batch.trajectories)
            logprobs = batch.logprobs(logits)
            value, _ = core_algos.compute_policy_loss_reinforce(
                logprobs.detach(), logprobs, theirs, batch.mask, "seq-mean-token-sum", config
            )
            gradient = torch.autograd.grad(value, logits)[0]
        ledger.compare(f"RLOO, first step ({loss}): gradient", engine.steps[0].gradient, gradient)


def check_kl_and_entropy_of_rloo(ledger: Ledger, seed: int) -> None:
    """The two terms are means over a trajectory's tokens, while the policy's term is a sum over them.

    verl aggregates all three alike. With advantages of 0 its loss consists of the two terms alone.
    """
    batch = random_batch(seed, ledger.dtype, max_turns=3, empty=True)
    terms = {"kl_coef": KL, "entropy_coef": ENTROPY}
    engines = []
    for options in ({}, terms):
        engines.append(TableEngine(batch))
        RLOO(epochs=2, **options).update(engines[-1], batch.trajectories)
    plain, full = (engine.steps for engine in engines)
    for without, step, logits in zip(plain, full, (batch.before, batch.after), strict=True):
        loss, gradient = loss_and_gradient(batch, logits, torch.zeros_like(batch.mask), **terms)
        ledger.compare("RLOO, KL and entropy terms: loss", step.loss - without.loss, loss)
        ledger.compare("RLOO, KL and entropy terms: gradient", step.gradient - without.gradient, gradient)


def check_rloo_rejects_groups_of_one(ledger: Ledger, seed: int) -> None:
    batch = random_batch(seed, ledger.dtype, sizes=(3, 1), equal=())
    message = ""
    try:
        RLOO().update(TableEngine(batch), batch.trajectories)
    except ValueError as error:
        message = str(error)
    assert "group 1 has one trajectory" in message, f"a group of one should be rejected: {message}"
    for name, expected in (("rloo", batch.rewards[3]), ("rloo_vectorized", torch.zeros(()))):
        theirs, _ = core_algos.get_adv_estimator_fn(name)(scores(batch), batch.mask, index(batch))
        ledger.compare(f"RLOO, verl's advantages in groups of one ({name})", expected, theirs[3, 0])


def standardized(batch: RandomBatch, whitened: Tensor, raw: Tensor) -> Tensor:
    """Return verl's whitened advantages, rescaled to the population deviation of the raw ones without the 1e-8."""
    inside = raw[batch.mask.bool()]
    return whitened * batch.mask * (inside.var(correction=1) + 1e-8).sqrt() / inside.std(correction=0)


def check_reinforce_pp(ledger: Ledger, seed: int) -> None:
    for turns in (1, 3):
        batch = random_batch(seed, ledger.dtype, sizes=(4, 3, 4, 1, 2), max_turns=turns, empty=True)
        for terms in ({"kl_coef": 0.0}, {"kl_coef": KL, "entropy_coef": ENTROPY}):
            engine = TableEngine(batch)
            ReinforcePP(epochs=2, **terms).update(engine, batch.trajectories)
            # A group of one is its own mean; verl uses a mean of 0. With a reward of 0 both are equal.
            rewards = torch.where(batch.group_sizes() == 1, 0.0, batch.rewards)
            theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
                batch.at_last_action(rewards), batch.mask, index(batch)
            )
            theirs = standardized(batch, theirs, baselined(batch)[:, None] * batch.mask)
            ledger.compare("REINFORCE++, advantages", token_advantages(batch, engine.steps[0].objective), theirs)
            what = "REINFORCE++, with KL and entropy" if terms["kl_coef"] else "REINFORCE++"
            compare_steps(ledger, what, engine.steps, batch, theirs, **terms)


def check_reinforce_pp_without_spread(ledger: Ledger, seed: int) -> None:
    """With equal rewards ours have no gradient; verl divides rounding errors by at least 1e-4."""
    batch = random_batch(seed, ledger.dtype, equal=range(4), max_turns=3)
    engine = TableEngine(batch)
    update = ReinforcePP(kl_coef=0.0).update(engine, batch.trajectories)
    theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
        scores(batch), batch.mask, index(batch)
    )
    assert (advantages_of(update.trajectories, batch.mask) == 0).all(), "advantages should be exactly 0"
    assert all((step.gradient == 0).all() for step in engine.steps), "gradients should be exactly 0"
    assert theirs.abs().max() <= 4 * torch.finfo(batch.mask.dtype).eps / 1e-4


def check_reinforce_pp_with_kl_in_the_reward(ledger: Ledger, seed: int) -> None:
    """verl's REINFORCE++ without a baseline uses rewards-to-go; we pass rewards minus the baseline."""
    batch = random_batch(seed, ledger.dtype, max_turns=3, empty=True)
    engine = TableEngine(batch)
    ReinforcePP(epochs=2, kl_coef=0.0, kl_reward_coef=0.1).update(engine, batch.trajectories)
    rewards = core_algos.compute_rewards(
        batch.at_last_action(baselined(batch)), batch.logprobs(batch.before), batch.logprobs(batch.reference), 0.1
    )
    theirs, returns = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        rewards, batch.mask, config=AlgoConfig(gamma=1.0)
    )
    theirs = standardized(batch, theirs, returns)
    ledger.compare(
        "REINFORCE++, KL in the reward: advantages", token_advantages(batch, engine.steps[0].objective), theirs
    )
    compare_steps(ledger, "REINFORCE++, KL in the reward", engine.steps, batch, theirs)


def baselined(batch: RandomBatch) -> Tensor:
    """Return rewards [N] minus the mean of their group."""
    means = {
        group: batch.rewards[[n for n, other in enumerate(batch.groups) if other == group]].mean()
        for group in batch.groups
    }
    return batch.rewards - torch.stack([means[group] for group in batch.groups])


def generalized(
    batch: RandomBatch, *, gamma: float, lam: float, kl_reward_coef: float, bootstrap_truncated: bool = False
) -> tuple[Tensor, Tensor]:
    """Return verl's GAE advantages, rescaled to our deviation, and its returns, both [N, L]."""
    # verl ends every row with its reward; to bootstrap, gamma V(end) is passed as the reward of a truncated row.
    bootstrap = torch.tensor([bootstrap_truncated and t.stop in TRUNCATED for t in batch.trajectories])
    ends = batch.at_last_action(torch.where(bootstrap, gamma * batch.end_values, batch.rewards))
    rewards = core_algos.compute_rewards(
        ends, batch.logprobs(batch.before), batch.logprobs(batch.reference), kl_reward_coef
    )
    theirs, returns = core_algos.compute_gae_advantage_return(rewards, batch.values, batch.mask, gamma, lam)
    return standardized(batch, theirs, returns - batch.values), returns * batch.mask


def check_gae_over_observations(ledger: Ledger, seed: int) -> None:
    """The function itself, on rows with observations; PPO passes rows of actions only."""
    batch = random_batch(seed, ledger.dtype, max_turns=3, empty=True)
    advantages, returns = gae(scores(batch), batch.values, batch.mask.bool(), gamma=0.97, lam=0.9)
    whitened, theirs = core_algos.compute_gae_advantage_return(scores(batch), batch.values, batch.mask, 0.97, 0.9)
    ledger.compare("gae over observations: returns", returns * batch.mask, theirs * batch.mask)
    inside = advantages[batch.mask.bool()]
    ours = (advantages - inside.mean()) / inside.std(correction=0) * batch.mask
    ledger.compare("gae over observations: advantages", ours, standardized(batch, whitened, theirs - batch.values))


def check_ppo(ledger: Ledger, seed: int) -> None:
    for turns in (1, 3):
        for clip, bootstrap in ((0.2, False), (None, False), (0.2, True)):
            batch = random_batch(seed, ledger.dtype, max_turns=turns, empty=True, truncated=True)
            engine = TableEngine(batch)
            options = {"gamma": 0.97, "lam": 0.9, "kl_reward_coef": 0.1, "bootstrap_truncated": bootstrap}
            algorithm = PPO(epochs=2, minibatches=1, value_clip=clip, kl_coef=KL, entropy_coef=ENTROPY, **options)
            algorithm.update(engine, batch.trajectories)
            theirs, returns = generalized(batch, **options)
            loss = engine.critic_steps[0].objective
            gae_of = "PPO, GAE with bootstrapping" if bootstrap else "PPO, GAE"
            ledger.compare(f"{gae_of}: returns", batch.over_rows(loss.returns), returns)
            ledger.compare(f"{gae_of}: advantages", token_advantages(batch, engine.steps[0].objective), theirs)
            compare_steps(
                ledger,
                "PPO, policy with KL and entropy",
                engine.steps,
                batch,
                theirs,
                aggregate="token-mean",
                kl_coef=KL,
                entropy_coef=ENTROPY,
            )
            for step, values in zip(engine.critic_steps, (batch.values, batch.moved_values), strict=True):
                leaf = values.clone().requires_grad_()
                theirs_loss, _ = core_algos.compute_value_loss(
                    leaf, returns, batch.values, batch.mask, 1e9 if clip is None else clip, "token-mean"
                )
                ledger.compare("PPO, critic: loss", step.loss, theirs_loss)
                gradient = torch.autograd.grad(theirs_loss, leaf)[0]
                ledger.compare("PPO, critic: gradient", step.gradient, gradient)


def check_ppo_in_minibatches(ledger: Ledger, seed: int) -> None:
    """Our mean is over the tokens of the iteration, not of the mini-batch, so long trajectories have more weight."""
    batch = random_batch(seed, ledger.dtype, max_turns=3)
    engine = TableEngine(batch)
    generator = torch.Generator().manual_seed(seed)
    terms = {"kl_coef": KL, "entropy_coef": ENTROPY}
    PPO(minibatches=2, gamma=1.0, lam=0.95, **terms).update(engine, batch.trajectories, generator=generator)
    theirs, _ = generalized(batch, gamma=1.0, lam=0.95, kl_reward_coef=0.0)
    for step, logits in zip(engine.steps, (batch.before, batch.after), strict=True):
        rows = torch.tensor(step.rows)
        loss, gradient = loss_and_gradient(batch, logits, theirs, aggregate="token-mean", rows=rows, **terms)
        share = batch.mask[rows].sum() / batch.mask.sum() * len(batch.trajectories) / len(rows)
        ledger.compare("PPO in mini-batches: loss", step.loss, share * loss)
        ledger.compare("PPO in mini-batches: gradient", step.gradient, share * gradient)


def check_grpo_in_minibatches(ledger: Ledger, seed: int) -> None:
    """The divisor is the number of trajectories in the mini-batch, those without gradient included."""
    batch = random_batch(seed, ledger.dtype, max_turns=3)
    engine = TableEngine(batch)
    generator = torch.Generator().manual_seed(seed)
    update = GRPO(minibatches=2, kl_coef=0.0).update(engine, batch.trajectories, generator=generator)
    advantages = grpo_advantages(ledger, batch, advantages_of(update.trajectories, batch.mask))
    order = torch.randperm(len(batch.trajectories), generator=torch.Generator().manual_seed(seed))
    for step, logits, rows in zip(engine.steps, (batch.before, batch.after), order.tensor_split(2), strict=True):
        loss, gradient = loss_and_gradient(batch, logits, advantages, rows=rows)
        share = len(batch.trajectories) / len(rows)  # verl divides by global_batch_size
        ledger.compare("GRPO in mini-batches: loss", step.loss, share * loss)
        ledger.compare("GRPO in mini-batches: gradient", step.gradient, share * gradient)


def check_k3(ledger: Ledger, seed: int) -> None:
    """verl clamps the estimate at 10; below that it is the same."""
    generator = torch.Generator().manual_seed(seed)
    new, reference = (torch.randn(200, generator=generator, dtype=ledger.dtype) * spread for spread in (1, 2))
    new.requires_grad_()
    ours, theirs = k3(new, reference), core_algos.kl_penalty(new, reference, "k3")
    near = ours.detach() < 10
    assert near.any(), "all estimates are above 10"
    assert not near.all(), "no estimate is above 10"
    assert (theirs[~near] == 10).all(), "verl should clamp at 10"
    ledger.compare("k3: value below 10", ours[near], theirs[near])
    gradients = [torch.autograd.grad(value[near].sum(), new)[0] for value in (ours, theirs)]
    ledger.compare("k3: gradient below 10", *gradients)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
