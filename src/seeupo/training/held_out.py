"""Evaluation of a policy in training, on tasks that it is not trained on."""

from __future__ import annotations

from collections.abc import Callable

from seeupo.training.evaluation import Evaluation, Plan, attempts, panel_of
from seeupo.training.parts import Parts
from seeupo.training.players import PolicyPlayer
from seeupo.training.recipe import Recipe
from seeupo.types import Trajectory


def plan_of(recipe: Recipe, parts: Parts, policy: str) -> Plan:
    """What is evaluated; `policy` says whom."""
    return Plan(
        policy=policy,
        environment=parts.pool.name,
        split=recipe.environment.test_split,
        options=dict(recipe.environment.options),
        samples=recipe.evaluation.samples,
        k=recipe.evaluation.k,
        seed=recipe.run.seed,
        max_turns=recipe.agent.max_turns,
        sampling={
            "temperature": recipe.agent.temperature,
            "max_tokens": recipe.agent.max_tokens,
            "template": "reasoning" if recipe.agent.reasoning else "plain",
        },
        panel=panel_of(parts.test_tasks),
    )


def evaluate(
    recipe: Recipe, parts: Parts, policy: str, heard: Callable[[int], None]
) -> tuple[Evaluation, list[Trajectory]]:
    """Play every held-out task several times with the policy as it is now; the episodes are sorted by their id."""
    evaluation = Evaluation(plan_of(recipe, parts, policy), {})
    trajectories: list[Trajectory] = []
    wanted = attempts(parts.test_tasks, recipe.evaluation.samples, recipe.run.seed)
    for episode in PolicyPlayer(parts.runner, trajectories.append).play(wanted):
        evaluation.add(episode)
        heard(len(evaluation.episodes))
    return evaluation, sorted(trajectories, key=lambda trajectory: trajectory.id)
