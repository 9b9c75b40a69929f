"""What training computes, in figures that do not depend on the machine: defaults, tasks, demonstrations and updates.

cd tests && PYTHONPATH=.. ../.venv/bin/python -m comparison.training_behavior > comparison/training_behavior.json
"""

import hashlib
import json

import torch

from algorithms.examples import ragged_problem, sampled, table_engine
from algorithms.test_backbones import CriticEngine
from seeupo.algorithms import ALGORITHMS, SeeUPO
from seeupo.comparison.result_store import TRAINING_REVISION
from seeupo.config.changes import flat
from seeupo.config.loader import recipe_to_table
from seeupo.config.schema import Recipe, WarmStartSettings
from seeupo.envs.pocket import PocketFactory
from seeupo.utils.seeds import derive_seed

SECTIONS = ("agent", "collect", "optimizer", "critic", "mismatch", "evaluation", "warm_start")
"""Sections of a recipe whose defaults decide what a run measures; others decide where and how fast it runs."""


def behavior():
    """Return the figures by name."""
    return {
        "revision": TRAINING_REVISION,
        "defaults": {section: defaults(section, SeeUPO()) for section in SECTIONS}
        | {name: defaults("algorithm", algorithm()) for name, algorithm in ALGORITHMS.items()},
        "updates": {name: update(algorithm()) for name, algorithm in ALGORITHMS.items()},
        "pocket": {str(options): pocket(**options) for options in ({}, {"decision": "late", "turns": (3, 8)})},
        "seeds": derive_seed(1, "a", 2),
    }


def defaults(section, algorithm):
    table = recipe_to_table(Recipe(algorithm=algorithm, warm_start=WarmStartSettings()))[section]
    return json.loads(json.dumps(dict(flat(table))))


def update(algorithm):
    """Return the probabilities of all actions of a small problem after one update, to six digits."""
    engine = CriticEngine(table_engine(ragged_problem()))
    algorithm.update(engine, sampled(engine), generator=torch.Generator().manual_seed(0))
    return [round(float(value), 6) for value in engine.log_policy().exp().flatten()]


def pocket(**options):
    """Return a hash of tasks and of noisy demonstrations with their scores."""
    world, digest = PocketFactory(train_tasks=40, test_tasks=40, **options), hashlib.sha256()
    env = world.make()
    for split in world.splits:
        for number, task in enumerate(world.tasks(split)):
            expert, result = world.noisy_expert(task, seed=number, rates={}), env.reset(task, seed=0)
            digest.update(repr((task.id, task.seed, sorted(task.payload["given"].items()))).encode())
            while not result.done:
                action = expert(result)
                result = env.step(action)
                digest.update(repr((action, [message.content for message in result.messages])).encode())
            digest.update(repr(env.score()).encode())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    print("{" + ",\n ".join(f'"{key}": {json.dumps(value)}' for key, value in behavior().items()) + "}")
