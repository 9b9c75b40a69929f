"""A recipe that runs in a second or two: a very small model that can learn to decline for a partial score."""

from dataclasses import replace

from seeupo.config.model_settings import ModelSettings, TinySettings
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.config.schema import (
    AgentSettings,
    CollectSettings,
    EnvironmentSettings,
    EvaluationSettings,
    Recipe,
    RunSettings,
    WarmStartSettings,
)

SMALL = Recipe(
    run=RunSettings(iterations=3, checkpoint_every=1, keep_checkpoints=2, seed=3, threads=1),
    model=ModelSettings(tiny=TinySettings(width=32, layers=1, heads=2, context=128)),
    environment=EnvironmentSettings(
        options={"turns": [2, 3], "train_tasks": 64, "test_tasks": 8, "max_turns": 4, "deceptive": 0.5}
    ),
    agent=AgentSettings(reasoning=False, max_tokens=6, max_turns=4, concurrency=16),
    collect=CollectSettings(tasks=4, group_size=4),
    optimizer=OptimizerSettings(learning_rate=1e-3, beta1=0.0),
    evaluation=EvaluationSettings(tasks=4, attempts=2, k=2, every=2),
    warm_start=WarmStartSettings(
        episodes=32, noisy=0.9, batches=20, batch_episodes=8, learning_rate=1e-2, mistakes={"stops_early": 0.4}
    ),
)


def small(**sections):
    """Return the small recipe with changed sections; threads are fixed so that recipes compare equal."""
    changed = {
        name: replace(getattr(SMALL, name), **change) if isinstance(change, dict) else change
        for name, change in sections.items()
    }
    return replace(SMALL, **changed)
