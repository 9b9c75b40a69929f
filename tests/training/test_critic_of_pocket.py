"""PPO's critic on episodes of `pocket` that experts and players with mistakes have left."""

import random
from dataclasses import replace

import pytest
import torch

from seeupo.agents.template import Conversation
from seeupo.algorithms import PPO
from seeupo.engines.local_critic import CriticSettings
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.envs.pool.pool import Mistakes
from seeupo.rollout.scripted import drive, game
from seeupo.training.setup import assemble
from seeupo.types import Trajectory, Turn
from training.small_runs import small

RECIPE = small(
    algorithm=PPO(minibatches=8, critic_warmup=1_000),
    model={"tiny": replace(small().model.tiny, width=64, layers=2, heads=4)},
    critic=CriticSettings(optimizer=OptimizerSettings(learning_rate=1e-3, weight_decay=0.0)),
    environment={"options": {"turns": [2, 3], "train_tasks": 512}},
)


NO_OTHER = dict.fromkeys(("wrong_choice", "wrong_word", "skipped_lookup", "wrong_tool"), 0.0)
"""A critic cannot foresee which of two words is the wrong one without knowing the world; giving up it can see."""


def mixed_episodes(parts, count):
    """Episodes of three players: one solves every task, one gives up now and then, one nearly always does."""
    draw = random.Random(0)

    def episode(number):
        task, seed, rate = draw.choice(parts.train_tasks), draw.getrandbits(31), draw.choice([0.0, 0.2, 0.9])
        expert = parts.pool.expert(task, mistakes=Mistakes(seed, {**NO_OTHER, "stops_early": rate}))
        heard, said = [], []

        def choose(result):
            heard.append(result)
            said.append(expert.submit(result))
            return said[-1]

        played = yield from game(parts.pool, task, seed, choose, max_turns=4)
        conversation = Conversation.begin(parts.runner.chat, parts.runner.template, heard[0])
        samples = []
        for turn, text in enumerate(said):
            ids = parts.runner.chat.response(text.result())
            samples.append(Turn(f"{number:04d}", turn, conversation.prompt_ids(), ids))
            if turn + 1 < len(heard):
                conversation.add(ids, heard[turn + 1])
        return Trajectory(
            id=f"{number:04d}", group=task.id, task=task.id, turns=tuple(samples), reward=played.score,
            stop=played.stop,
        )  # fmt: skip

    return sorted(drive(episode(number) for number in range(count)), key=lambda trajectory: trajectory.id)


def test_the_critic_explains_most_of_the_variance_of_returns():
    with assemble(RECIPE) as parts:
        episodes = mixed_episodes(parts, 768)
        solved = sum(trajectory.reward for trajectory in episodes) / len(episodes)
        assert 0.3 < solved < 0.7
        # Lambda 1: returns are what was scored, and nothing of the critic's own making.
        algorithm = replace(RECIPE.algorithm, lam=1.0, value_clip=None)

        def explained(seen):
            update = algorithm.update(parts.engine, seen, generator=torch.Generator().manual_seed(0))
            return update.metrics[-1].values["explained_variance"]

        on_seen = [explained(episodes[:512]) for _ in range(12)]
        on_fresh = explained(episodes[512:])
    assert on_seen[0] == pytest.approx(0.0, abs=1e-6)  # values begin at 0
    assert on_seen[-1] > 0.5
    assert on_fresh > 0.4  # it was not learned by heart
