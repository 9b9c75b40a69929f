"""Every algorithm improves on a small task with the defaults of its paper."""

import pytest

from seeupo.algorithms import ALGORITHMS
from seeupo.config.optimizer_settings import CriticOptimizerSettings, CriticSettings
from seeupo.runs.run_directory import RunDirectory
from seeupo.training.run import train
from training.small_runs import small


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_improves(name, tmp_path):
    recipe = small(
        algorithm=ALGORITHMS[name](),
        run={"iterations": 6, "checkpoint_every": 6},
        collect={"tasks": 8, "group_size": 8},
        optimizer={"learning_rate": 2e-3},
        critic=CriticSettings(optimizer=CriticOptimizerSettings(learning_rate=3e-3)),
        evaluation={"every": 0, "tasks": 2},
    )
    train(recipe, run_dir=tmp_path / "run")
    records = [r for r in RunDirectory.open(tmp_path / "run").metrics() if r["kind"] == "iteration"]
    rewards = [record["reward_mean"] for record in records]
    assert rewards[0] < 0.15
    assert rewards[-1] > 0.35
    assert all(record["algorithm"]["optimizer_steps"] >= 1 for record in records)
