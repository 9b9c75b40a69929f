"""Sampling ahead: `collect.lag = 1`."""

import json

import pytest

from seeupo.callbacks import Callback
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.training.ahead import AHEAD
from seeupo.training.interrupts import Interrupted
from seeupo.training.run import resume, train
from training.small_runs import small

LAG = {"iterations": 4, "checkpoint_every": 1, "keep_checkpoints": 4}


def records(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def learned(run_dir):
    """Return the metrics of all iterations without their timings."""
    return [{key: value for key, value in record.items() if key != "timings"} for record in records(run_dir)]


def versions(run_dir, iteration):
    path = run_dir / "trajectories" / f"{iteration:05d}.jsonl.gz"
    return {turn.policy_version for trajectory in read_trajectories(path) for turn in trajectory.turns}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(small(run=LAG, collect={"lag": 1}), run_dir=run_dir)
    return run_dir


def test_trajectories_are_one_update_old(whole):
    assert [versions(whole, iteration) for iteration in range(1, 5)] == [{0}, {0}, {1}, {2}]
    timings = [record["timings"] for record in records(whole) if record["kind"] == "iteration"]
    assert [each["tokens_per_second"] is None for each in timings] == [False, True, True, True]
    # Ratios are relative to the policy that sampled, so they do not start at 1 from the second iteration on.
    kept = {path.parent.name for path in (whole / "checkpoints").glob(f"*/{AHEAD}")}
    assert "00001" in kept
    assert "00004" not in kept  # nothing follows


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_resumed_run_equals_an_uninterrupted_one(whole, tmp_path, stop_after):
    class Stop(Callback):
        def on_progress(self, done, text=""):
            if (tmp_path / "run" / "trajectories" / f"{stop_after:05d}.jsonl.gz").exists():
                raise Interrupted

        def on_iteration(self, iteration):
            self.on_progress(0)

    with pytest.raises(Interrupted):
        train(small(run=LAG, collect={"lag": 1}), run_dir=tmp_path / "run", callback=Stop())
    resume(tmp_path / "run")
    assert learned(tmp_path / "run") == learned(whole)


def test_without_lag_every_trajectory_is_of_the_latest_policy(tmp_path):
    train(small(run=LAG), run_dir=tmp_path / "run")
    assert [versions(tmp_path / "run", iteration) for iteration in range(1, 5)] == [{0}, {1}, {2}, {3}]
