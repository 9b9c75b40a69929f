"""The methods whose weights are scored, and their updates at equal KL."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seeupo.algorithms import GRPO, MTGRPO, PPO, GiGPO, SeeUPO
from seeupo.core.order import Order
from seeupo.protocols import Algorithm
from seeupo.types import Trajectory
from studies.credit.engine import GroupEngine, Groups
from studies.credit.problem import F64, CreditProblem

KL_TOLERANCE = 0.01
"""Relative difference at which two KLs count as equal."""
MAX_RUNS = 20


@dataclass(frozen=True)
class Method:
    """An algorithm and the error of its critic.

    Attributes:
        name: Name in tables.
        algorithm: The algorithm that trains language models, with one step and without clip and KL penalty; None for
            the true advantages as weights.
        critic_error: Standard deviation of the critic's error, in standard deviations of the reward.
        carries: True if the weights depend on the step size, as M does.
    """

    name: str
    algorithm: Algorithm | None
    critic_error: float = 0.0
    carries: bool = False


def seeupo(order: Order, *, carry: bool = True) -> SeeUPO:
    return SeeUPO(order=order, ratio="product", clip=None, carry=carry)


def ppo(level: str, error: float) -> Method:
    algorithm = PPO(level=level, clip=None, minibatches=1)  # type: ignore[arg-type]
    return Method(f"PPO, {level} level, critic error {error:g}", algorithm, error)


WITH_M, WITHOUT_M = "SeeUPO, reverse", "SeeUPO, without M"
TRUE = "true advantage"
CRITIC_ERRORS = (0.0, 0.5, 1.0)
METHODS: tuple[Method, ...] = (
    Method(WITH_M, seeupo("reverse"), carries=True),
    Method("SeeUPO, natural", seeupo("natural"), carries=True),
    Method("SeeUPO, random", seeupo("random"), carries=True),
    Method(WITHOUT_M, seeupo("reverse", carry=False)),
    Method("GRPO", GRPO(clip=None, kl_coef=0.0)),
    Method("GiGPO", GiGPO(clip=None, kl_coef=0.0, minibatches=1)),
    Method("MT-GRPO", MTGRPO(clip=None, minibatches=1)),
    *(ppo("token", error) for error in CRITIC_ERRORS),
    *(ppo("turn", error) for error in CRITIC_ERRORS),
    Method(TRUE, None),
)


@dataclass(frozen=True)
class Updated:
    """One update.

    Attributes:
        weights: Weight of each turn [n] in the update, as the algorithm records it; 0 for turns that it left out.
        log_policy: log pi(action) [C, T, S, A] after the update.
        kl: Mean KL of trajectories to the policy that sampled.
    """

    weights: Tensor
    log_policy: Tensor
    kl: float


def update_at_kl(
    method: Method, problem: CreditProblem, groups: Groups, kl: float, generator: Callable[[], torch.Generator]
) -> Updated:
    """Update the first policy with the learning rate at which the mean KL over the groups is `kl`.

    Weights that do not depend on the step size need one run: the step is linear in the learning rate.
    """
    number = int(groups.group.max()) + 1
    old = problem.token_log_probs().repeat(number, 1)
    log_old = problem.action_log_probs(old)

    def run(rate: float) -> tuple[Tensor, Tensor]:
        """Return the weights and the change of the logits."""
        engine = GroupEngine(
            problem, number, learning_rate=rate, critic_error=method.critic_error, generator=generator()
        )
        if method.algorithm is None:
            weights = true_weights(problem, groups)
            return weights, rate * policy_gradient(engine, groups, weights)
        update = method.algorithm.update(engine, groups.trajectories, generator=generator())
        return recorded_weights(update.trajectories, problem.num_turns), engine.policy.logits.detach() - old

    rate = first_rate = float(number)
    weights, change = first_weights, first_change = run(rate)
    low, high = 0.0, math.inf
    power = 2.0  # the KL of a small step grows with the square of the rate
    previous: tuple[float, float] | None = None
    for _ in range(MAX_RUNS):
        log_new = problem.action_log_probs((old + change).log_softmax(1))
        measured = float(problem.kl(log_old, log_new).mean())
        if abs(measured / kl - 1) <= KL_TOLERANCE or measured == 0:
            break
        if previous is not None and rate != previous[0]:
            power = min(20.0, max(1.0, math.log(measured / previous[1]) / math.log(rate / previous[0])))
        previous = rate, measured
        low, high = (rate, high) if measured < kl else (low, rate)
        guess = rate * min(8.0, max(0.125, (kl / measured) ** (1 / power)))
        rate = guess if low < guess < high else (low + high) / 2
        if method.carries:
            weights, change = run(rate)
        else:
            weights, change = first_weights, first_change * (rate / first_rate)
    return Updated(weights, log_new, measured)


def recorded_weights(trajectories: Sequence[Trajectory], turns: int) -> Tensor:
    """Return the weight of each turn [n], as the algorithm recorded it in the credit."""
    weights = torch.zeros(len(trajectories), turns, dtype=F64)
    for row, trajectory in enumerate(trajectories):
        if trajectory.credit is not None:
            for credit in trajectory.credit.turns:
                weights[row, credit.turn] = credit.carried_before
    return weights.flatten()


def true_weights(problem: CreditProblem, groups: Groups) -> Tensor:
    """Return the true advantage of each turn [n] under the policy that sampled."""
    probs = problem.start[None]
    return problem.advantages(probs, probs).flatten()[groups.cell]


def policy_gradient(engine: GroupEngine, groups: Groups, weights: Tensor) -> Tensor:
    """Return the gradient of the mean over turns of weight times log pi(action), with respect to the logits."""
    logprobs = engine.problem.action_log_probs(engine.policy.log_probs())
    action_logprobs = logprobs.flatten(1)[groups.group, groups.cell]
    value = (groups.count * weights * action_logprobs).sum() / groups.count.sum()
    return torch.autograd.grad(value, engine.policy.logits)[0]
