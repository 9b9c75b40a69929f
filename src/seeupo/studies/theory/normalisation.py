"""Claims about normalising advantages: by the group's deviation, by the batch's, and by subtracting a mean."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seeupo.algorithms import SeeUPO
from seeupo.algorithms.batch import Batch
from seeupo.core import clipped_objective
from seeupo.core.advantages import Normalize
from seeupo.engines.exact import ExactEngine, GradientAscent, Problem, TablePolicy
from seeupo.studies.theory.mechanism import trajectory_advantages
from seeupo.studies.theory.sequential import credits_of
from seeupo.studies.theory.setting import (
    CLIP,
    CLIPPED_MAXIMISER,
    Falls,
    MakeProblem,
    Scale,
    Simultaneous,
    Trial,
    blind_table,
    random_bandit,
    random_network,
    random_table,
    random_tree,
    returns_over_iterations,
    total_variation,
)
from seeupo.studies.theory.verdict import Check, Claim, Scope
from seeupo.types import Trajectory, TurnKey


def uneven_bandit(generator: torch.Generator) -> Problem:
    """One turn, with rewards that vary little in one context and much in another."""
    problem = random_bandit(generator, contexts=3, actions=3, turns=1)
    spread = torch.tensor([1.0, 0.3, 0.05], dtype=torch.float64)[problem.contexts]
    return Problem(**{**vars(problem), "rewards": problem.rewards * spread[:, None]})


def gspo_drift(rewards: Tensor, old: Tensor, new: Tensor, deviation: float) -> float:
    """The paper's drift of one state: E_new[A] minus the clipped objective on A / deviation."""
    advantages = rewards - old.exp() @ rewards
    objective = clipped_objective(new - old, advantages / deviation, clip=CLIP)
    return float(new.exp() @ advantages - old.exp() @ objective)


def seeupo(normalize: Normalize, *, steps: int = 1) -> SeeUPO:
    return SeeUPO(normalize=normalize, ratio="product", epochs=steps, measure_drift=False)


def group_deviation_drift(scale: Scale) -> Claim:
    own: list[float] = []
    lowest = dict.fromkeys((0.25, 0.5, 1.0, 2.0, 4.0), 0.0)
    for number in range(scale.problems):
        generator = scale.generator("gspo", number)
        rewards = torch.rand(4, generator=generator, dtype=torch.float64) * 4
        old = torch.randn(4, generator=generator, dtype=torch.float64).log_softmax(0)
        spread = float((old.exp() @ (rewards - old.exp() @ rewards) ** 2).sqrt())
        for _ in range(20):
            noise = 0.3 * torch.randn(4, generator=generator, dtype=torch.float64)
            new = (old + noise).log_softmax(0)
            own.append(gspo_drift(rewards, old, new, spread))
            for deviation in lowest:
                lowest[deviation] = min(lowest[deviation], gspo_drift(rewards, old, new, deviation))

    def falls(trial: Trial, normalize: Normalize) -> Falls:
        counted = Falls()
        for number in range(scale.problems):
            generator = scale.generator("gspo runs", number)
            problem = uneven_bandit(generator)
            engine = ExactEngine(problem, trial.policy(problem, generator), trial.rule)
            algorithm = seeupo(normalize, steps=trial.steps)
            counted.watch(returns_over_iterations(engine, algorithm, 8), problem=number)
        return counted

    checks = [
        Check("the drift is never negative when the deviation is 1", lowest[1.0] > -1e-12, {"lowest": lowest[1.0]}),
        Check("it is negative somewhere for the group's own deviation", min(own) < -1e-12, {"lowest": min(own)}),
        *(
            Check(f"it is negative somewhere when the deviation is {deviation:g}", drift < -1e-12, {"lowest": drift})
            for deviation, drift in lowest.items()
            if deviation != 1
        ),
    ]
    for trial in [
        Trial("maximiser, separate parameters", random_table, CLIPPED_MAXIMISER),
        Trial("maximiser, one distribution for all contexts", blind_table, CLIPPED_MAXIMISER),
        Trial("4 gradient steps (lr 3), shared network", random_network, GradientAscent(3.0), 4),
    ]:
        # What the paper concludes from the negative drift: that improvement is lost.
        counted = falls(trial, "group")
        figures = counted.figures | {"falls_without_normalisation": falls(trial, "none").falls}
        checks.append(Check(f"J falls at times: {trial.setting}", counted.falls > 0, figures, Scope.PRACTICE))
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


OPTIONS: tuple[Normalize, ...] = ("batch", "group")


def normalisation_keeps_maximiser(scale: Scale) -> Claim:
    def after(trial: Trial, make_problem: MakeProblem, number: int, normalize: Normalize) -> tuple[Tensor, Tensor]:
        """The policy after one sweep, and the direction in which its parameters moved."""
        generator = scale.generator("normalisation", number)
        problem = make_problem(generator)
        policy = trial.policy(problem, generator)
        engine = ExactEngine(problem, policy, trial.rule)
        start = torch.cat([weight.flatten().clone() for _, weight in engine.weights()])
        seeupo(normalize).update(engine, engine.enumerate())
        end = torch.cat([weight.flatten() for _, weight in engine.weights()])
        return engine.log_policy(), end - start

    separate = Trial("separate parameters", random_table, CLIPPED_MAXIMISER)
    shared = Trial("one distribution per turn", blind_table, CLIPPED_MAXIMISER)
    network = Trial("shared network", random_network, GradientAscent(1e-3))
    checks: list[Check] = []
    distances: dict[str, list[float]] = {}
    cosines: dict[str, list[float]] = {}
    for normalize in OPTIONS:
        batch = normalize == "batch"
        for trial in (separate, shared):
            name = f"{normalize} normalisation, {trial.setting}"
            distances[name] = [
                total_variation(*(after(trial, random_bandit, number, option)[0] for option in ("none", normalize)))
                for number in range(scale.problems)
            ]
            figures = {
                "largest_distance": max(distances[name]),
                "changed": sum(distance > 1e-9 for distance in distances[name]),
                "problems": scale.problems,
            }
            if batch:
                checks.append(Check(f"the maximiser stays: {name}", figures["changed"] == 0, figures))
            else:
                checks.append(Check(f"the maximiser changes: {name}", figures["changed"] > 0, figures, Scope.PRACTICE))
        cosines[normalize] = []
        for number in range(scale.problems):
            plain, normalised = (after(network, uneven_bandit, number, option)[1] for option in ("none", normalize))
            cosines[normalize].append(float(torch.cosine_similarity(plain, normalised, dim=0)))
        smallest = min(cosines[normalize])
        name = f"{normalize} normalisation, {network.setting}"
        cosine = {"smallest_cosine": smallest}
        if batch:
            checks.append(Check(f"the gradient keeps its direction: {name}", smallest > 1 - 1e-9, cosine))
        else:
            checks.append(Check(f"the gradient turns: {name}", smallest < 1 - 1e-9, cosine, Scope.PRACTICE))
    return Claim(
        id=10,
        title="Normalisation and the maximiser",
        claim=(
            "Dividing all advantages by the batch's deviation does not change the maximiser; dividing by the group's "
            "does (Appendix on batch normalisation)."
        ),
        problems=(
            f"{scale.problems} random bandits (2 contexts, 3 turns, 3 actions), one sweep of the clipped maximiser; "
            "the gradient of a network on bandits with uneven contexts"
        ),
        checks=checks,
        curves={"distances": distances, "cosines": cosines},
    )


def given_weights(_: ExactEngine, __: Sequence[Trajectory], weights: dict[TurnKey, float]) -> dict[TurnKey, float]:
    return weights


def shifted_whole_batches(scale: Scale) -> tuple[int, dict[str, Any] | None]:
    """In how many one-turn bandits the clipped maximiser changes when 0.2 is subtracted from all; the first in full."""
    changed, example = 0, None
    for number in range(scale.problems):
        generator = scale.generator("whole batch", number)
        problem = random_bandit(generator, contexts=1, actions=3, turns=1)
        start = random_table(problem, generator).logits.detach()
        policies = []
        for shift in (0.0, 0.2):
            engine = ExactEngine(problem, TablePolicy(start), CLIPPED_MAXIMISER)
            trajectories = engine.enumerate()
            advantages = trajectory_advantages(engine, trajectories)
            shifted = {key: advantage - shift for key, advantage in advantages.items()}
            Simultaneous(partial(given_weights, weights=shifted)).update(engine, trajectories)
            policies.append(engine.log_policy())
        if total_variation(*policies) > 1e-9:
            changed += 1
            example = example or {
                "problem": number,
                "old policy": start.softmax(1)[0].tolist(),
                "A": list(advantages.values()),
                "maximiser with A": policies[0][0].exp().tolist(),
                "maximiser with A - 0.2": policies[1][0].exp().tolist(),
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

        engine = ExactEngine(problem, TablePolicy(start), CLIPPED_MAXIMISER)
        batch = Batch(engine.enumerate())
        counts = torch.tensor(list(batch.multiplicities.values()), dtype=torch.float64)
        advantages = batch.advantages("none", "mean")
        last_pool = batch.pools[-1]
        members = batch.members(last_pool)
        batch_means.append(weighted_mean(advantages, counts))
        survivor_means.append(weighted_mean(advantages[members], counts[members]))

        # The last pool alone, as it is and with its mean subtracted.
        policies = []
        for shift in (0.0, survivor_means[-1]):
            shifted = (advantages[members] - shift).tolist()
            weights = {turn.key: weight for turn, weight in zip(last_pool, shifted, strict=True)}
            engine = ExactEngine(problem, TablePolicy(start), CLIPPED_MAXIMISER)
            before = engine.expected_return()
            Simultaneous(partial(given_weights, weights=weights)).update(engine, engine.enumerate())
            policies.append(engine.log_policy())
        gains.append(engine.expected_return() - before)
        distances.append(total_variation(*policies))

        engine = ExactEngine(problem, TablePolicy(start), CLIPPED_MAXIMISER)
        update = SeeUPO(normalize="none", ratio="product").update(engine, engine.enumerate())
        # The next pool, of the last turn but one, is weighted by M as the last turn left it.
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
            "Subtracting a mean from the advantages changes nothing, because the maximiser is invariant to it "
            "(Appendix on batch normalisation)."
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
                "the clipped maximiser stays when 0.2 is subtracted from a whole batch, one turn",
                whole_batch == 0,
                {"changed": whole_batch, "problems": scale.problems},
                counterexample=example,
            ),
            Check(
                "the clipped maximiser stays when the survivors' mean is subtracted from the last pool",
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
