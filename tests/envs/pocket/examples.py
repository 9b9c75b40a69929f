"""Helpers that run episodes of pocket."""

from functools import cache
from itertools import product

from seeupo.envs.pocket import PocketFactory
from seeupo.envs.pocket.apps import TOOLS, Call
from seeupo.envs.pocket.words import words_of

SETTINGS = [
    {"surface": surface, "deceptive": deceptive, "distractors": distractors}
    for surface, deceptive, distractors in product(("terse", "natural"), (0.0, 0.3), (True, False))
]


@cache
def factory(**options):
    return PocketFactory(**{"train_tasks": 60, "test_tasks": 40} | options)


def task_of(world, kind, split="train"):
    return next(task for task in world.tasks(split) if task.kind == kind)


def rollout(env, task, policy, seed=0):
    """Return all results of an episode, the first one from `reset`, and all actions."""
    results, actions = [env.reset(task, seed=seed)], []
    while not results[-1].done:
        actions.append(policy(results[-1]))
        results.append(env.step(actions[-1]))
    return results, actions


def act(env, task, *actions):
    """Return the result of the last of these actions."""
    env.reset(task, seed=0)
    for action in actions:
        result = env.step(action)
    return result


def transcript(env, task, policy):
    """Return an episode as text."""
    results, actions = rollout(env, task, policy)
    lines = [f"{message.role}: {message.content}" for message in results[0].messages]
    for action, result in zip(actions, results[1:], strict=True):
        lines += [f"assistant: {action}", *(f"{message.role}: {message.content}" for message in result.messages)]
    return "\n".join([*lines, f"score: {env.score()}"])


def random_policy(surface, generator):
    """Return a policy that calls any offered tool with any valid words."""

    def act(_):
        tool = generator.choice(surface.tools)
        spec = TOOLS[tool]
        if spec.optional and generator.random() < 0.5:
            return surface.write(Call(tool))
        return surface.write(Call(tool, tuple(generator.choice(words_of(sort)) for sort in spec.takes)))

    return act
