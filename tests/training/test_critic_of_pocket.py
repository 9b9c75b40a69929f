"""PPO's critic on episodes of `pocket` by experts and noisy experts."""

import random
from dataclasses import replace

import pytest
import torch

from seeupo.algorithms import PPO
from seeupo.config.optimizer_settings import CriticOptimizerSettings, CriticSettings
from seeupo.envs.pool.pool import Mistakes
from seeupo.evaluation.scripted import run_rollouts, text_rollout
from seeupo.rollout.template import Conversation
from seeupo.training.setup import build
from seeupo.types import Attempt, StopReason, Trajectory, Turn
from training.small_runs import small

RECIPE = small(
    algorithm=PPO(minibatches=8, critic_warmup=1_000),
    model={"tiny": replace(small().model.tiny, width=64, layers=2, heads=4)},
    critic=CriticSettings(optimizer=CriticOptimizerSettings(learning_rate=1e-3, weight_decay=0.0)),
    environment={"options": {"turns": [2, 3], "train_tasks": 512}},
)


NO_OTHER = dict.fromkeys(("wrong_choice", "wrong_word", "skipped_lookup", "wrong_tool"), 0.0)
"""A critic cannot predict which of two words is wrong without knowing the environment; stopping early is visible."""


def mixed_episodes(components, count):
    """Return episodes of three noisy experts: one solves every task, one sometimes stops early, one nearly always."""
    generator = random.Random(0)

    def episode(number):
        task, seed, rate = (
            generator.choice(components.train_tasks),
            generator.getrandbits(31),
            generator.choice([0.0, 0.2, 0.9]),
        )
        expert = components.pool.expert(task, mistakes=Mistakes(seed, {**NO_OTHER, "stops_early": rate}))
        answers, actions = [], []

        def policy(answer):
            answers.append(answer)
            actions.append(expert.submit(answer))
            return actions[-1]

        name = f"{number:04d}"
        result = yield from text_rollout(components.pool, Attempt(name, task.id, task, seed), policy, max_turns=4)
        conversation = Conversation.start(components.runner.chat, components.runner.template, answers[0])
        turns = []
        for index, action in enumerate(actions):
            ids = components.runner.chat.response(action.result())
            turns.append(Turn(name, index, conversation.prompt_ids(), ids))
            if index + 1 < len(answers):
                conversation.add(ids, answers[index + 1])
        return Trajectory(
            id=name, group=task.id, task=task.id, turns=tuple(turns), reward=result.score, stop=StopReason(result.stop)
        )

    return sorted(run_rollouts(episode(number) for number in range(count)), key=lambda trajectory: trajectory.id)


def test_the_critic_explains_most_of_the_variance_of_returns():
    with build(RECIPE) as components:
        episodes = mixed_episodes(components, 512)
        solved = sum(trajectory.reward for trajectory in episodes) / len(episodes)
        assert 0.3 < solved < 0.7
        # With lambda 1, returns are the scores and do not depend on the critic.
        algorithm = replace(RECIPE.algorithm.build(), lam=1.0, value_clip=None)

        def explained(seen):
            update = algorithm.update(components.engine, seen, generator=torch.Generator().manual_seed(0))
            return update.metrics[-1].values["explained_variance"]

        on_seen = [explained(episodes[:384]) for _ in range(8)]
        on_fresh = explained(episodes[384:])
    assert on_seen[0] == pytest.approx(0.0, abs=1e-6)  # values start at 0
    assert on_seen[-1] > 0.5
    assert on_fresh > 0.4  # not memorized
