"""Training on two ranks: results, lost ranks, and resumption with another number of ranks."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from seeupo.callbacks import Callback
from seeupo.cli import main
from seeupo.config.loader import recipe_to_toml
from seeupo.config.model_settings import LoraSettings
from seeupo.config.process_settings import EngineSettings, SamplerSettings
from seeupo.distributed.rank_group import RankGroup
from seeupo.distributed.remote_samplers import RemoteSamplers
from seeupo.errors import TrainingError
from seeupo.runs.trajectory_files import read_trajectories
from seeupo.training.run import resume, train
from training.small_runs import small

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_on_this_machine")]

CLUSTER = EngineSettings(kind="cluster", trainers=2, call_seconds=300)
RECIPE = small(run={"iterations": 3, "checkpoint_every": 1}, model={"dtype": "float64"}, evaluation={"every": 0})


def records(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def trained_iterations(run_dir):
    return [record for record in records(run_dir) if record["kind"] == "iteration"]


def assert_complete(run_dir, recipe, iterations):
    """Check that a run has all its iterations with all their trajectories, each once."""
    found, each = trained_iterations(run_dir), recipe.collect.tasks * recipe.collect.group_size
    assert [record["iteration"] for record in found] == list(range(1, iterations + 1))
    assert [record["episodes"] for record in found] == [each] * iterations
    for record in found:
        path = run_dir / "trajectories" / f"{record['iteration']:05d}.jsonl.gz"
        assert len({trajectory.id for trajectory in read_trajectories(path)}) == each


def assert_same_learning(one, two, *, tolerance):
    """Compare the iterations of two runs."""
    for first, second in zip(trained_iterations(one), trained_iterations(two), strict=True):
        assert second["reward_mean"] == first["reward_mean"]
        assert second["algorithm"] == pytest.approx(first["algorithm"], rel=tolerance, abs=tolerance)


def kill_a_sampler(monkeypatch):
    """Kill the first sampler once, while it samples for the second iteration; return a list that it is then in."""
    import ray

    killed, original = [], RemoteSamplers.poll

    def poll(samplers):
        found = original(samplers)
        slot = samplers._slots[0]
        if samplers.version == 1 and found and slot.running and not killed:
            killed.append(slot)
            ray.kill(slot.actor)
        return found

    monkeypatch.setattr(RemoteSamplers, "poll", poll)
    return killed


class DuringUpdate(Callback):
    """Calls a function with the ranks in the update of an iteration, once, and records notes."""

    def __init__(self, monkeypatch, iteration, act):
        self.done, self.current, self.notes = False, None, []
        original = RankGroup.call

        def call(group, method, *arguments, **options):
            if arguments[:1] == ("begin_iteration",):
                self.current = arguments[1]
            # A warm start computes no log-probs, so this is an iteration of the algorithm.
            if arguments[:1] == ("logprobs",) and self.current == iteration and not self.done:
                self.done = True
                act(group)
            return original(group, method, *arguments, **options)

        monkeypatch.setattr(RankGroup, "call", call)

    def on_note(self, text):
        self.notes.append(text)


def ask_a_rank(group, question):
    import ray

    return ray.get(group._actors[1].__ray_call__.remote(question), timeout=60)


def node_id(rank):
    import ray

    return ray.get_runtime_context().get_node_id()


def kill_a_rank(group):
    os.kill(ask_a_rank(group, lambda rank: os.getpid()), signal.SIGKILL)


def with_lag(lag):
    return replace(RECIPE, collect=replace(RECIPE.collect, lag=lag))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of the same recipe in one process."""
    run_dir = tmp_path_factory.mktemp("plain") / "run"
    train(RECIPE, run_dir=run_dir)
    return run_dir


@pytest.fixture(scope="module")
def plain_with_lag(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("lag") / "run"
    train(with_lag(1), run_dir=run_dir)
    return run_dir


def test_a_lost_rank_is_replaced_and_the_run_continues_from_its_checkpoint(plain, tmp_path, monkeypatch):
    killer = DuringUpdate(monkeypatch, 2, kill_a_rank)
    lost = train(replace(RECIPE, engine=CLUSTER), run_dir=tmp_path / "lost", callback=killer)
    assert killer.done
    assert any("a rank of the cluster engine was lost" in note for note in killer.notes)
    assert lost.summary["iterations"] == 3
    # Neither the ranks nor the loss change what is learned.
    assert_complete(tmp_path / "lost", RECIPE, 3)
    assert_same_learning(plain, tmp_path / "lost", tolerance=1e-8)

    # What two ranks saved continues in one process, with the same learning rate and the same tasks.
    engine = {"engine.kind": "local", "engine.trainers": 1}
    resume(tmp_path / "lost", changes={"run.iterations": 4, **engine}, accept_changes=True)
    assert_complete(tmp_path / "lost", RECIPE, 4)


def test_a_lost_node_is_survived_if_the_rest_suffices(
    plain, tmp_path, monkeypatch, simulated_nodes, ray_on_this_machine
):
    """One rank per node on two of three nodes; then on two nodes of which one dies."""

    def kill_a_node(group):
        lost = ask_a_rank(group, node_id)
        node = next(node for node in ray_on_this_machine.worker_nodes if node.node_id == lost)
        ray_on_this_machine.remove_node(node, allow_graceful=False)

    recipe = replace(RECIPE, engine=CLUSTER)
    with simulated_nodes(1, 1, 1):
        killer = DuringUpdate(monkeypatch, 1, kill_a_node)
        train(recipe, run_dir=tmp_path / "survives", callback=killer)
        assert killer.done
        assert_complete(tmp_path / "survives", RECIPE, 3)
        assert_same_learning(plain, tmp_path / "survives", tolerance=1e-8)

        def kill_another(group):
            kill_a_node(group)
            monkeypatch.setattr("seeupo.distributed.ray_cluster.RESERVE_SECONDS", 1.0)

        killer = DuringUpdate(monkeypatch, 1, kill_another)
        with pytest.raises(TrainingError, match=r"the Ray cluster has \d+ CPU \(.*needs 2 CPU in 2 processes\."):
            train(recipe, run_dir=tmp_path / "ends", callback=killer)
    assert_complete(tmp_path / "ends", RECIPE, 1)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_killed_sampler_loses_no_episode(lag, plain, plain_with_lag, tmp_path, monkeypatch):
    killed = kill_a_sampler(monkeypatch)
    run = replace(RECIPE.run, deterministic=False)
    train(replace(with_lag(lag), run=run, sampler=SamplerSettings(count=2)), run_dir=tmp_path / "run")
    assert killed
    assert_complete(tmp_path / "run", RECIPE, 3)
    assert_same_learning(plain_with_lag if lag else plain, tmp_path / "run", tolerance=1e-8)


def test_a_rank_lost_while_sampling_ahead_is_replaced(plain_with_lag, tmp_path, monkeypatch):
    """The samplers finish what they sample ahead, although it is discarded."""
    started, killed, original, poll = [], [], RemoteSamplers.__init__, RemoteSamplers.poll

    def start(samplers, *arguments, **options):
        original(samplers, *arguments, **options)
        started.append(samplers)

    def held_poll(samplers):
        if killer.current == 1 and not killed:  # no request finishes before the rank is lost
            time.sleep(0.01)
            return []
        return poll(samplers)

    def kill(group):
        while not started[0]._unfinished:
            time.sleep(0.01)
        kill_a_rank(group)
        killed.append(group)

    monkeypatch.setattr(RemoteSamplers, "__init__", start)
    monkeypatch.setattr(RemoteSamplers, "poll", held_poll)
    killer = DuringUpdate(monkeypatch, 1, kill)
    recipe = replace(with_lag(1), sampler=SamplerSettings(count=1), engine=CLUSTER)
    train(recipe, run_dir=tmp_path / "run", callback=killer)
    assert killer.done
    assert_complete(tmp_path / "run", recipe, 3)
    assert_same_learning(plain_with_lag, tmp_path / "run", tolerance=1e-8)


def family(pid):
    """Return a process and its descendants: of a run, all processes of its Ray cluster."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    members = [pid]
    for member in members:
        members += [child for child, parent in pairs if parent == member]
    return members


def test_a_run_continues_after_all_its_processes_were_killed(tmp_path):
    """Two ranks are killed; two ranks, the local engine and one rank continue, one iteration each."""
    run_dir, recipe = tmp_path / "run", tmp_path / "recipe.toml"
    recipe.write_text(recipe_to_toml(replace(RECIPE, engine=CLUSTER, run=replace(RECIPE.run, iterations=1000))))
    command = [sys.executable, "-m", "seeupo", "train", str(recipe), "--out", str(run_dir)]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    while not (run_dir / "checkpoints" / "00002").exists() and process.poll() is None:
        time.sleep(0.05)
    killed = family(process.pid)
    assert len(killed) > 5  # the ranks are among them
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, (tmp_path / "output").read_text()
    done = max(int(path.name) for path in (run_dir / "checkpoints").iterdir() if path.name.isdecimal())
    for kind, trainers in (("cluster", 2), ("local", 1), ("cluster", 1)):
        done += 1
        changes = ["--engine.kind", kind, "--engine.trainers", str(trainers), "--run.iterations", str(done)]
        result = CliRunner().invoke(main, ["train", "--resume", str(run_dir), "--accept-changes", *changes])
        assert result.exit_code == 0, result.output
        assert_complete(run_dir, RECIPE, done)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2, per_turn=3)], ids=["full", "adapters"])
def test_sampler_processes_sample_like_the_trainer(tmp_path, lora):
    """One process trains, another samples: the same trajectories as in one process."""
    model = {"dtype": "float64", "lora": lora}
    for name, sampler in (("own", {"count": 1}), ("plain", {})):
        train(small(run={"iterations": 2}, model=model, sampler=sampler), run_dir=tmp_path / name)
    for one, two in zip(*(trained_iterations(tmp_path / name) for name in ("own", "plain")), strict=True):
        assert one["reward_mean"] == two["reward_mean"]
        assert one["entropy"] == pytest.approx(two["entropy"], abs=1e-9)
        assert one["sampler_gap"] < 1e-9


def test_a_request_for_too_many_resources_says_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr("seeupo.distributed.ray_cluster.RESERVE_SECONDS", 1.0)
    recipe = small(engine=replace(CLUSTER, trainers=64))
    with pytest.raises(Exception, match=r"the Ray cluster has .* CPU .*this run needs 64 CPU"):
        train(recipe, run_dir=tmp_path / "run")


def test_ranks_that_keep_dying_end_the_run_with_one_error(tmp_path, monkeypatch):
    recipe = small(run={"iterations": 2, "checkpoint_every": 5}, engine=replace(CLUSTER, restarts=0))
    killer = DuringUpdate(monkeypatch, 1, kill_a_rank)
    with pytest.raises(TrainingError, match="without a checkpoint in between"):
        train(recipe, run_dir=tmp_path / "run", callback=killer)
