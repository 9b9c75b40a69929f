"""Runs that train on step rewards, and environments that have none beside their score."""

from dataclasses import replace

import pytest

from envs.gymnasium_text.text_worlds import Scripted
from seeupo.algorithms import MTGRPO
from seeupo.envs.gymnasium_text import GymnasiumTextFactory
from seeupo.envs.trust import TrustError
from seeupo.errors import TrainingError
from seeupo.runs.run_directory import RunDirectory
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.training.loop import Loop
from seeupo.training.run import train
from training.small_runs import SMALL, small

SHORT = small(
    run={"iterations": 1},
    evaluation={"every": 0, "tasks": 2},
    collect={"reward": "score_and_steps"},
    warm_start={"noisy": 0.0, "batches": 60},
)
REWARD = """
from seeupo import reward_function

@reward_function
def turns(trajectory):
    return -len(trajectory.turns)
"""
OPTIONS = {**SMALL.environment.options, "deceptive": 0.0}


def test_step_rewards_are_refused_unless_they_are_separate_from_the_score(tmp_path):
    with pytest.raises(TrainingError, match=r'collect.reward = "score_and_steps": pocket declares no step rewards'):
        train(SHORT, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_step_rewards_are_trained_on_and_written(tmp_path):
    environment = replace(SHORT.environment, options={**OPTIONS, "lookup_reward": 0.125})
    train(replace(SHORT, environment=environment, algorithm=MTGRPO()), run_dir=tmp_path / "run")
    trajectories = list(read_trajectories(tmp_path / "run" / "trajectories" / "00001.jsonl.gz"))
    steps = [sum(turn.reward for turn in each.turns) for each in trajectories]
    assert set(steps) - {0.0} == {0.125}  # these tasks need one lookup
    for each, found in zip(trajectories, steps, strict=True):
        assert (each.outcome, each.reward) == (each.score, each.score + found)
    (record,) = (r for r in RunDirectory.open(tmp_path / "run").metrics() if r["kind"] == "iteration")
    assert record["reward_mean"] == pytest.approx(sum(each.reward for each in trajectories) / len(trajectories))
    assert record["algorithm"]["turn_advantage_sd"] > 0


def test_reward_function_is_trained_on_if_it_is_trusted(tmp_path):
    (tmp_path / "rewards.py").write_text(REWARD)
    reference = f"{tmp_path}/rewards.py:turns"
    recipe = replace(SHORT, collect=replace(SHORT.collect, reward=reference))
    with pytest.raises(TrustError, match="this needs your consent"):
        train(recipe, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(recipe, run_dir=tmp_path / "run", trust=[reference])
    trajectories = list(read_trajectories(tmp_path / "run" / "trajectories" / "00001.jsonl.gz"))
    assert {each.reward + len(each.turns) for each in trajectories} == {0}
    assert all(each.score >= 0 for each in trajectories)
    assert RunDirectory.open(tmp_path / "run").env_info()["trusted_code"] == [reference]


def test_mistakes_in_a_reward_function_are_reported_before_the_warm_start(tmp_path, monkeypatch):
    (tmp_path / "rewards.py").write_text(REWARD.replace("-len", "-size"))
    reference = f"{tmp_path}/rewards.py:turns"
    recipe = replace(SHORT, collect=replace(SHORT.collect, reward=reference))
    monkeypatch.delattr(Loop, "run")
    with pytest.raises(TrainingError, match=r"failed on an episode of empty responses: NameError: name 'size'"):
        train(recipe, run_dir=tmp_path / "run", trust=[reference])
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:environments run without a sandbox", "ignore:no optimizer step was made")
@pytest.mark.parametrize(("rewards", "score", "trained"), [("terminal", 0.5, 0.875), ("sum", 0.875, None)])
def test_rewards_of_a_gymnasium_environment_are_trained_on_once(tmp_path, rewards, score, trained):
    """Each reward that it pays is in the score or in a step, never in both; with the sum, steps are refused."""
    factory = GymnasiumTextFactory(make=Scripted, rewards=rewards, train=4, test=2)
    recipe = replace(SHORT, warm_start=None)
    if trained is None:
        with pytest.raises(TrainingError, match='gymnasium, gem: rewards = "terminal"'):
            train(recipe, run_dir=tmp_path / "run", environment=factory)
        recipe, trained = replace(recipe, collect=replace(recipe.collect, reward="score")), score
    train(recipe, run_dir=tmp_path / "run", environment=factory)
    found = list(read_trajectories(tmp_path / "run" / "trajectories" / "00001.jsonl.gz"))
    assert {(each.score, each.reward) for each in found} == {(score, trained)}
