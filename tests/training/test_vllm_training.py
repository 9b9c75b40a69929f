"""A run with two ranks and a vLLM sampler."""

import json
from dataclasses import replace

import pytest

from seeupo.config.model_settings import LoraSettings, TinySettings
from seeupo.distributed.remote_samplers import RemoteSamplers
from seeupo.errors import TrainingError
from seeupo.training.run import train
from training.small_runs import small
from training.test_cluster_training import assert_complete, kill_a_sampler
from training.test_shared_placement import check_order, record_order

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("ray_on_this_machine")]
pytest.importorskip("vllm", reason="vLLM is not installed; `make vllm-test` runs these tests")

CLUSTER = {"kind": "cluster", "trainers": 2, "call_seconds": 600}
VLLM = {"kind": "vllm", "count": 1}
MODEL = {"tiny": TinySettings(width=64, layers=1, heads=2, context=128)}  # vLLM on CPUs needs heads of at least 32


def gaps(run_dir):
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [record["sampler_gap"] for record in records if record["kind"] == "iteration"]


def test_ranks_train_what_vllm_samples(tmp_path):
    recipe = small(run={"iterations": 3, "deterministic": False}, model=MODEL, engine=CLUSTER, sampler=VLLM)
    result = train(recipe, run_dir=tmp_path / "run")
    assert result.summary["optimizer_steps"] > 0
    assert len(gaps(tmp_path / "run")) == 3
    assert max(gaps(tmp_path / "run")) < 1e-4  # after the warm start and after every update


def test_vllm_samples_each_turn_with_its_adapter(tmp_path):
    recipe = small(
        run={"iterations": 2, "deterministic": False},
        model={**MODEL, "lora": LoraSettings(rank=2, per_turn=3)},
        engine=CLUSTER,
        sampler=VLLM,
        optimizer={"learning_rate": 3e-2},
    )
    result = train(recipe, run_dir=tmp_path / "run")
    assert result.summary["optimizer_steps"] > 0
    assert max(gaps(tmp_path / "run")) < 1e-4


def test_vllm_sleeps_during_updates_on_devices_that_it_shares(tmp_path, monkeypatch):
    events = record_order(monkeypatch)
    recipe = small(
        run={"iterations": 2, "deterministic": False},
        model=MODEL,
        engine=CLUSTER,
        sampler={**VLLM, "placement": "shared"},
        evaluation={"every": 0},
    )
    train(recipe, run_dir=tmp_path / "run")
    check_order(events, iterations=2)
    assert max(gaps(tmp_path / "run")) < 1e-4


def test_a_missed_sync_is_caught_by_the_gap(tmp_path, monkeypatch):
    """The version is faked as well, so that only the comparison of log-probs can notice it."""
    original = RemoteSamplers.sync

    def sync(samplers, engine, version):
        if version == 1:
            monkeypatch.setattr(samplers, "_finish", lambda slot, completion: finish(samplers, slot, completion))
            samplers.expected = version
            return
        original(samplers, engine, version)

    def finish(samplers, slot, completion):
        del slot.running[completion.id]
        samplers._finished[completion.id] = replace(completion, version=samplers.expected)

    monkeypatch.setattr(RemoteSamplers, "sync", sync)
    recipe = small(
        run={"iterations": 2, "deterministic": False},
        model=MODEL,
        sampler=VLLM,
        optimizer={"learning_rate": 3e-2},
        mismatch={"max_gap": 1e-2},
        evaluation={"every": 0},
    )
    with pytest.raises(TrainingError, match="the log-probs of sampler and trainer differ by"):
        train(recipe, run_dir=tmp_path / "run")


def test_a_killed_vllm_process_loses_no_episode(tmp_path, monkeypatch):
    killed = kill_a_sampler(monkeypatch)
    recipe = small(run={"iterations": 3, "deterministic": False}, model=MODEL, sampler=VLLM, evaluation={"every": 0})
    train(recipe, run_dir=tmp_path / "run")
    assert killed
    assert_complete(tmp_path / "run", recipe, 3)
    assert max(gaps(tmp_path / "run")) < 1e-4  # the replacement has the current weights
