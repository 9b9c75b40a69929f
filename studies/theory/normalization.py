"""Claims about normalizing advantages: by the group's deviation, by the batch's deviation, and by a mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seeupo.algorithms import SeeUPO
from seeupo.algorithms.common.batch import Batch
from seeupo.core.advantages import Normalize
from seeupo.core.ratios import clipped_objective
from seeupo.types import TurnKey
from studies.exact import ExactEngine, GradientAscent, Problem, TablePolicy
from studies.exact.policy import Policy
from studies.exact.updates import Pool, UpdateRule
from studies.theory.mechanism import trajectory_advantages
from studies.theory.sequential import credits_of
from studies.theory.setting import (
    CLIP,
    CLIPPED_MAXIMIZER,
    Falls,
    MakeProblem,
    Scale,
    Setup,
    Simultaneous,
    flat_parameters,
    per_turn_table,
    random_bandit,
    random_network,
    random_table,
    random_tree,
    returns_over_iterations,
    total_variation,
)
from studies.theory.verdict import Check, Claim, Scope


def uneven_bandit(generator: torch.Generator) -> Problem:
    """Return a one-turn bandit whose rewards vary little in one context and much in another."""
    problem = random_bandit(generator, contexts=3, actions=3, turns=1)
    spread = torch.tensor([1.0, 0.3, 0.05], dtype=torch.float64)[problem.contexts]
    return Problem(**{**vars(problem), "rewards": problem.rewards * spread[:, None]})


def gspo_drift(rewards: Tensor, old: Tensor, new: Tensor, deviation: float) -> float:
    """Return the paper's drift of one state: E_new[A] minus the clipped objective on A / deviation."""
    advantages = rewards - old.exp() @ rewards
    objective = clipped_objective(new - old, advantages / deviation, clip=CLIP)
    return float(new.exp() @ advantages - old.exp() @ objective)


def seeupo(normalize: Normalize, *, steps: int = 1) -> SeeUPO:
    return SeeUPO(normalize=normalize, ratio="product", epochs=steps)


def group_deviation_drift(scale: Scale) -> Claim:
    drifts: list[float] = []
    lowest = dict.fromkeys((0.25, 0.5, 1.0, 2.0, 4.0), 0.0)
    for number in range(scale.problems):
        generator = scale.generator("gspo", number)
        rewards = torch.rand(4, generator=generator, dtype=torch.float64) * 4
        old = torch.randn(4, generator=generator, dtype=torch.float64).log_softmax(0)
        spread = float((old.exp() @ (rewards - old.exp() @ rewards) ** 2).sqrt())
        for _ in range(20):
            noise = 0.3 * torch.randn(4, generator=generator, dtype=torch.float64)
            new = (old + noise).log_softmax(0)
            drifts.append(gspo_drift(rewards, old, new, spread))
            for deviation in lowest:
                lowest[deviation] = min(lowest[deviation], gspo_drift(rewards, old, new, deviation))

    def count_falls(setup: Setup, normalize: Normalize) -> Falls:
        falls = Falls()
        for number in range(scale.problems):
            generator = scale.generator("gspo runs", number)
            problem = uneven_bandit(generator)
            engine = ExactEngine(problem, setup.policy(problem, generator), setup.rule)
            algorithm = seeupo(normalize, steps=setup.steps)
            falls.count(returns_over_iterations(engine, algorithm, 8), problem=number)
        return falls

    checks = [
        Check("the drift is never negative when the deviation is 1", lowest[1.0] > -1e-12, {"lowest": lowest[1.0]}),
        Check("it is negative somewhere for the group's own deviation", min(drifts) < -1e-12, {"lowest": min(drifts)}),
        *(
            Check(f"it is negative somewhere when the deviation is {deviation:g}", drift < -1e-12, {"lowest": drift})
            for deviation, drift in lowest.items()
            if deviation != 1
        ),
    ]
    for setup in [
        Setup("maximizer, separate parameters", random_table, CLIPPED_MAXIMIZER),
        Setup("maximizer, one distribution for all contexts", per_turn_table, CLIPPED_MAXIMIZER),
        Setup("4 gradient steps (lr 3), shared network", random_network, GradientAscent(3.0), 4),
    ]:
        # The paper concludes from the negative drift that monotonic improvement is lost.
        falls = count_falls(setup, "group")
        figures = falls.figures | {"falls_without_normalization": count_falls(setup, "none").falls}
        checks.append(Check(f"J falls at times: {setup.label}", falls.falls > 0, figures, Scope.PRACTICE))
    return Claim(
        id=9,
        title="GSPO's drift",
        claim=(
            "Dividing by the group's deviation makes the drift negative unless it is 1, which breaks the guarantee "
            "(Theorem 9)."
        ),
        problems=(
            f"{scale.problems} random states with 4 actions; {scale.problems} bandits with one turn, whose 3 contexts "
            "differ in the spread of their rewards, 8 iterations"
        ),
        checks=checks,
        curves={"lowest_drift_by_deviation": {f"{deviation:g}": drift for deviation, drift in lowest.items()}},
    )


SEED_LABEL = "normalisation"
"""Seeds the problems of claim 10; another spelling would draw other problems."""


class AdamW:
    """Update rule of language-model training: AdamW with its usual moments and the paper's weight decay."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.optimizer: torch.optim.AdamW | None = None

    def __call__(self, policy: Policy, pool: Pool) -> dict[str, float]:
        parameters = list(policy.parameters().values())
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(parameters, self.learning_rate, weight_decay=0.01, maximize=True)
        gradients = torch.autograd.grad(pool.value(policy.log_probs()), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        return {}


def direction_with_kl(scale: Scale, number: int, normalize: Normalize, kl_coef: float) -> Tensor:
    """Return the gradient of a network with a KL penalty, after 10 iterations of training away from the reference."""
    generator = scale.generator(SEED_LABEL, number)
    problem = uneven_bandit(generator)
    policy = random_network(problem, generator)
    engine = ExactEngine(problem, policy, GradientAscent(3.0))
    for _ in range(10):
        seeupo("none", steps=4).update(engine, engine.enumerate())
    start = flat_parameters(policy)
    engine.update = GradientAscent(1.0)
    replace(seeupo(normalize), kl_coef=kl_coef).update(engine, engine.enumerate())
    return flat_parameters(policy) - start


def displacement(scale: Scale, number: int, normalize: Normalize, rule: UpdateRule) -> Tensor:
    """Return the displacement of a network's parameters over 20 iterations."""
    generator = scale.generator(SEED_LABEL, number)
    problem = random_bandit(generator)
    policy = random_network(problem, generator)
    engine = ExactEngine(problem, policy, rule)
    start = flat_parameters(policy)
    for _ in range(20):
        seeupo(normalize).update(engine, engine.enumerate())
    return flat_parameters(policy) - start


def training_checks(scale: Scale) -> list[Check]:
    """Measure the effect of batch normalization beside a KL penalty, and under AdamW."""
    checks = []
    for kl_coef in (0.002, 0.02):
        cosines = []
        for number in range(scale.problems):
            plain, normalized = (direction_with_kl(scale, number, option, kl_coef) for option in ("none", "batch"))
            cosines.append(float(torch.cosine_similarity(plain, normalized, dim=0)))
        figures = {"smallest_cosine": min(cosines), "mean_cosine": sum(cosines) / len(cosines)}
        setting = f"the gradient keeps its direction: batch normalization, shared network, KL {kl_coef:g}"
        checks.append(Check(setting, min(cosines) > 1 - 1e-9, figures, Scope.PRACTICE))
    make_rules: dict[str, Callable[[], UpdateRule]] = {
        "gradient ascent": lambda: GradientAscent(0.01),
        "AdamW": lambda: AdamW(0.01),
    }
    for name, make_rule in make_rules.items():
        lengths = []
        for number in range(scale.few):
            plain, normalized = (displacement(scale, number, option, make_rule()) for option in ("none", "batch"))
            lengths.append(float(normalized.norm() / plain.norm()))
        mean = sum(lengths) / len(lengths)
        figures = {"mean_length_ratio": mean, "smallest": min(lengths), "largest": max(lengths)}
        setting = f"20 iterations move as far, to within 10%: batch normalization, shared network, {name}"
        checks.append(Check(setting, abs(mean - 1) < 0.1, figures, Scope.COMPARISON))
    return checks


def normalization_keeps_maximizer(scale: Scale) -> Claim:
    def after(setup: Setup, make_problem: MakeProblem, number: int, normalize: Normalize) -> tuple[Tensor, Tensor]:
        """Return the policy after one sweep, and the displacement of its parameters."""
        generator = scale.generator(SEED_LABEL, number)
        problem = make_problem(generator)
        policy = setup.policy(problem, generator)
        engine = ExactEngine(problem, policy, setup.rule)
        start = flat_parameters(policy)
        seeupo(normalize).update(engine, engine.enumerate())
        return engine.log_policy(), flat_parameters(policy) - start

    separate = Setup("separate parameters", random_table, CLIPPED_MAXIMIZER)
    shared = Setup("one distribution per turn", per_turn_table, CLIPPED_MAXIMIZER)
    network = Setup("shared network", random_network, GradientAscent(1e-3))
    checks: list[Check] = []
    distances: dict[str, list[float]] = {}
    cosines: dict[str, list[float]] = {}
    options: tuple[Normalize, ...] = ("batch", "group")
    for normalize in options:
        batch = normalize == "batch"
        for setup in (separate, shared):
            name = f"{normalize} normalization, {setup.label}"
            distances[name] = [
                total_variation(*(after(setup, random_bandit, number, option)[0] for option in ("none", normalize)))
                for number in range(scale.problems)
            ]
            figures = {
                "largest_distance": max(distances[name]),
                "changed": sum(distance > 1e-9 for distance in distances[name]),
                "problems": scale.problems,
            }
            if batch:
                checks.append(Check(f"the maximizer stays: {name}", figures["changed"] == 0, figures))
            else:
                checks.append(Check(f"the maximizer changes: {name}", figures["changed"] > 0, figures, Scope.PRACTICE))
        cosines[normalize] = []
        for number in range(scale.problems):
            plain, normalized = (after(network, uneven_bandit, number, option)[1] for option in ("none", normalize))
            cosines[normalize].append(float(torch.cosine_similarity(plain, normalized, dim=0)))
        smallest = min(cosines[normalize])
        name = f"{normalize} normalization, {network.label}"
        cosine = {"smallest_cosine": smallest}
        if batch:
            checks.append(Check(f"the gradient keeps its direction: {name}", smallest > 1 - 1e-9, cosine))
        else:
            checks.append(Check(f"the gradient turns: {name}", smallest < 1 - 1e-9, cosine, Scope.PRACTICE))
    return Claim(
        id=10,
        title="Normalization and the maximizer",
        claim=(
            "Without a KL term, dividing all advantages by the batch's deviation does not change the maximizer; "
            "dividing by the group's does (Appendix on batch normalization, which does not mention the KL term)."
        ),
        problems=(
            f"{scale.problems} random bandits (2 contexts, 3 turns, 3 actions), one sweep of the clipped maximizer; "
            "the gradient of a network on bandits with uneven contexts, with a KL term after 10 iterations"
        ),
        checks=[*checks, *training_checks(scale)],
        curves={"distances": distances, "cosines": cosines},
    )


def with_weights(weights: dict[TurnKey, float]) -> Simultaneous:
    return Simultaneous(lambda *_: weights)


def shifted_whole_batches(scale: Scale) -> tuple[int, dict[str, Any] | None]:
    """Count the one-turn bandits whose clipped maximizer changes when 0.2 is subtracted from every advantage.

    Also return the first of them in full.
    """
    changed, example = 0, None
    for number in range(scale.problems):
        generator = scale.generator("whole batch", number)
        problem = random_bandit(generator, contexts=1, actions=3, turns=1)
        start = random_table(problem, generator).logits.detach()
        policies = []
        for shift in (0.0, 0.2):
            engine = ExactEngine(problem, TablePolicy(start), CLIPPED_MAXIMIZER)
            trajectories = engine.enumerate()
            advantages = trajectory_advantages(engine, trajectories)
            shifted = {key: advantage - shift for key, advantage in advantages.items()}
            with_weights(shifted).update(engine, trajectories)
            policies.append(engine.log_policy())
        if total_variation(*policies) > 1e-9:
            changed += 1
            example = example or {
                "problem": number,
                "old policy": start.softmax(1)[0].tolist(),
                "A": list(advantages.values()),
                "maximizer with A": policies[0][0].exp().tolist(),
                "maximizer with A - 0.2": policies[1][0].exp().tolist(),
            }
    return changed, example


def weighted_mean(values: Tensor, counts: Tensor) -> float:
    return float(counts @ values / counts.sum())


def constant_shifts(scale: Scale) -> Claim:
    batch_means: list[float] = []
    survivor_means: list[float] = []
    carried_means: list[float] = []
    distances: list[float] = []
    gains: list[float] = []
    for number in range(scale.problems):
        generator = scale.generator("shifts", number)
        problem = random_tree(generator)
        start = random_table(problem, generator).logits.detach()

        engine = ExactEngine(problem, TablePolicy(start), CLIPPED_MAXIMIZER)
        batch = Batch(engine.enumerate())
        counts = torch.tensor(list(batch.multiplicities.values()), dtype=torch.float64)
        advantages = batch.advantages("none", "mean")
        last_pool = batch.pools[-1]
        members = batch.members(last_pool)
        batch_means.append(weighted_mean(advantages, counts))
        survivor_means.append(weighted_mean(advantages[members], counts[members]))

        # Update the last pool alone, with its advantages unchanged and with their mean subtracted.
        policies = []
        for shift in (0.0, survivor_means[-1]):
            shifted = (advantages[members] - shift).tolist()
            weights = {turn.key: weight for turn, weight in zip(last_pool, shifted, strict=True)}
            engine = ExactEngine(problem, TablePolicy(start), CLIPPED_MAXIMIZER)
            before = engine.expected_return()
            with_weights(weights).update(engine, engine.enumerate())
            policies.append(engine.log_policy())
        gains.append(engine.expected_return() - before)
        distances.append(total_variation(*policies))

        engine = ExactEngine(problem, TablePolicy(start), CLIPPED_MAXIMIZER)
        update = SeeUPO(normalize="none", ratio="product").update(engine, engine.enumerate())
        # The next pool, of the second-to-last turn, is weighted by M after the last turn's update.
        carried = [
            (credit.carried_before, trajectory.multiplicity)
            for trajectory in update.trajectories
            for credit in credits_of(trajectory)
            if credit.turn == problem.num_turns - 2
        ]
        carried_means.append(weighted_mean(*torch.tensor(carried, dtype=torch.float64).T))

    whole_batch, example = shifted_whole_batches(scale)
    means = {
        "largest_batch_mean": max(map(abs, batch_means)),
        "mean_absolute_survivor_mean": sum(map(abs, survivor_means)) / len(survivor_means),
        "mean_absolute_mean_of_M": sum(map(abs, carried_means)) / len(carried_means),
    }
    changed = sum(distance > 1e-9 for distance in distances)
    return Claim(
        id=12,
        title="Subtracting a constant",
        claim=(
            "Subtracting a mean from the advantages changes nothing, because the maximizer is invariant to it "
            "(Appendix on batch normalization)."
        ),
        problems=f"{scale.problems} random trees (2 contexts, 3 turns) in which every turn may end the trajectory",
        checks=[
            Check("the mean of A is 0 over the batch", means["largest_batch_mean"] < 1e-12, means),
            Check(
                "the mean of A is 0 over the survivors of the last pool",
                max(map(abs, survivor_means)) < 1e-9,
                means,
                Scope.PRACTICE,
            ),
            Check(
                "the mean of M is 0 over the pool that is updated next",
                max(map(abs, carried_means)) < 1e-9,
                means,
                Scope.PRACTICE,
            ),
            Check(
                "the clipped maximizer stays when 0.2 is subtracted from a whole batch, one turn",
                whole_batch == 0,
                {"changed": whole_batch, "problems": scale.problems},
                counterexample=example,
            ),
            Check(
                "the clipped maximizer stays when the survivors' mean is subtracted from the last pool",
                changed == 0,
                {"changed": changed, "problems": len(distances), "largest_distance": max(distances)},
                Scope.PRACTICE,
            ),
            Check(
                "J does not fall when the survivors' mean is subtracted, separate parameters",
                min(gains) > -1e-9,
                {"smallest_gain": min(gains)},
                Scope.PRACTICE,
            ),
        ],
        curves={"survivor_means": survivor_means, "carried_means": carried_means, "distances": distances},
    )
