"""Training on two ranks: results, lost ranks, and resumption with another number of ranks."""

import json
import os
import signal

import pytest

from seeupo.engines.cluster.rank_group import RankGroup
from seeupo.errors import EngineLost
from seeupo.training.callbacks import NullCallback
from seeupo.training.train import resume, train
from training.small_runs import small

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_on_this_machine")]

CLUSTER = {"kind": "cluster", "trainers": 2, "call_seconds": 300}


def records(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def trained_iterations(run_dir):
    return [record for record in records(run_dir) if record["kind"] == "iteration"]


class KillARank(NullCallback):
    """Kills rank 1 during the update of an iteration, once."""

    def __init__(self, monkeypatch, iteration):
        self.pids, self.current, self.iteration, self.notes = [], None, iteration, []
        original = RankGroup.call

        def call(group, method, *arguments, **options):
            if method == "begin_iteration":
                self.current = arguments[0]
            # A warm start computes no log-probs, so this is an iteration of the algorithm.
            if method == "logprobs" and self.current == self.iteration and not self.pids:
                self.pids = group.call("pid")
                os.kill(self.pids[1], signal.SIGKILL)
            return original(group, method, *arguments, **options)

        monkeypatch.setattr(RankGroup, "call", call)

    def on_note(self, text):
        self.notes.append(text)


def test_a_lost_rank_is_replaced_and_the_run_continues_from_its_checkpoint(tmp_path, monkeypatch):
    recipe = small(run={"iterations": 3, "checkpoint_every": 1}, engine=CLUSTER)
    killer = KillARank(monkeypatch, iteration=2)
    lost = train(recipe, run_dir=tmp_path / "lost", callback=killer)
    assert killer.pids
    assert any("a rank of the cluster engine was lost" in note for note in killer.notes)
    assert lost.summary["iterations"] == 3
    found = trained_iterations(tmp_path / "lost")
    assert [record["iteration"] for record in found] == [1, 2, 3]
    expected = recipe.collect.tasks * recipe.collect.group_size
    assert [record["episodes"] for record in found] == [expected] * 3

    # What two ranks saved continues in one process, with the same learning rate and the same tasks.
    engine = {"engine.kind": "local", "engine.trainers": 1}
    again = resume(tmp_path / "lost", changes={"run.iterations": 4, **engine}, accept_changes=True)
    assert again.summary["iterations"] == 4
    assert [record["iteration"] for record in trained_iterations(tmp_path / "lost")] == [1, 2, 3, 4]

    # Neither the ranks nor the loss change what is learned.
    train(small(run={"iterations": 3, "checkpoint_every": 1}), run_dir=tmp_path / "plain")
    for one, two in zip(trained_iterations(tmp_path / "plain"), found, strict=True):
        assert two["reward_mean"] == one["reward_mean"]
        assert two["algorithm"] == pytest.approx(one["algorithm"], rel=1e-3, abs=1e-3)


def test_a_request_for_too_many_resources_says_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr("seeupo.engines.cluster.ray_cluster.RESERVE_SECONDS", 1.0)
    recipe = small(engine={**CLUSTER, "trainers": 64})
    with pytest.raises(Exception, match=r"the Ray cluster has .* CPU .*this run needs 64 CPU"):
        train(recipe, run_dir=tmp_path / "run")


def test_ranks_that_keep_dying_end_the_run_with_one_error(tmp_path, monkeypatch):
    recipe = small(run={"iterations": 2, "checkpoint_every": 5}, engine={**CLUSTER, "restarts": 0})
    killer = KillARank(monkeypatch, iteration=1)
    with pytest.raises(EngineLost, match="without a checkpoint in between"):
        train(recipe, run_dir=tmp_path / "run", callback=killer)
