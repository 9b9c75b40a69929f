"""Samplers that share the devices of the trainers: they release their memory during updates and return at a sync."""

import os
import subprocess
import sys

import pytest

from seeupo.distributed.rank_group import RankGroup
from seeupo.distributed.remote_samplers import RemoteSamplers
from seeupo.distributed.sampler_actor import SamplerActor
from seeupo.training.run import train
from training.small_runs import small
from waiting import wait_until

CLUSTER = {"kind": "cluster", "trainers": 2, "call_seconds": 300}
SHARED = {"count": 2, "placement": "shared"}


def record_order(monkeypatch) -> list[str]:
    """Return a list to which the calls of samplers and ranks are appended; repeated ones appear once."""
    events: list[str] = []

    def recorded(owner, name, event_of):
        original = getattr(owner, name)

        def call(self, *arguments, **options):
            event = event_of(arguments)
            if event is not None and events[-1:] != [event]:
                events.append(event)
            return original(self, *arguments, **options)

        monkeypatch.setattr(owner, name, call)

    work = {"build": "build", "step": "train", "logprobs": "train"}
    recorded(RankGroup, "call", lambda arguments: work.get(arguments[arguments[0] == "run"]))
    recorded(RemoteSamplers, "submit", lambda arguments: "sample")
    recorded(RemoteSamplers, "sync", lambda arguments: "sync")
    recorded(RemoteSamplers, "release", lambda arguments: "release")
    return events


def check_order(events: list[str], *, iterations: int) -> None:
    """A warm start, an evaluation before the first iteration and one after the last, each of which ends with a sync."""
    assert events[:6] == ["release", "build", "sync", "release", "train", "sync"]
    evaluation, iteration = ["sample", "sync"], ["sample", "release", "train", "sync"]
    assert events[6:] == evaluation + iteration * iterations + evaluation


@pytest.mark.cluster
@pytest.mark.usefixtures("ray_on_this_machine")
def test_samplers_release_before_every_update_and_return_at_the_sync(tmp_path, monkeypatch):
    import ray

    events, groups = record_order(monkeypatch), []
    start = RemoteSamplers._start

    def started(self, slot):
        start(self, slot)
        groups.append(self._bundles.group)

    monkeypatch.setattr(RemoteSamplers, "_start", started)
    recipe = small(run={"iterations": 2}, evaluation={"every": 0}, engine=CLUSTER, sampler=SHARED)
    result = train(recipe, run_dir=tmp_path / "run")
    assert result.summary["optimizer_steps"] > 0
    check_order(events, iterations=2)
    assert len({group.id for group in groups}) == 1  # one placement group for ranks and samplers
    wait_until(lambda: ray.util.placement_group_table(groups[0])["state"] == "REMOVED")


ON_LOGICAL_GPUS = """
import os, ray
ray.init(num_cpus=8, num_gpus=4, include_dashboard=False, address="local", log_to_driver=False)
from seeupo.distributed.placement import reserve_shared
from seeupo.distributed import rank_group
from seeupo.distributed.remote_samplers import RemoteSamplers

class LightRank:  # a real one imports much more
    def __init__(self, number, count): ...
    def listen(self): return "", 0
    def connect(self, address, seconds): ...
    def visible_devices(self): return os.environ["CUDA_VISIBLE_DEVICES"]

rank_group.Rank, RankGroup = LightRank, rank_group.RankGroup

class Devices:
    version = 0
    def sync(self, engine, version): ...
    def release(self): ...
    def devices(self): return os.environ["CUDA_VISIBLE_DEVICES"]

shared = reserve_shared(4, 2, tensor_parallel=2, on_gpu=True)
samplers = RemoteSamplers(Devices, 2, shared=shared)
samplers.release()
ranks = RankGroup(4, gpus=1, call_seconds=60, shared=shared)
seen = [sorted(ray.get(slot.actor.call.remote("devices"), timeout=60).split(",")) for slot in samplers._slots]
of_ranks = ray.get([actor.visible_devices.remote() for actor in ranks._actors], timeout=60)
assert seen == [sorted(of_ranks[:2]), sorted(of_ranks[2:])], (seen, of_ranks)
assert len(set(of_ranks)) == 4
ranks.close()
again = RankGroup(4, gpus=1, call_seconds=60, shared=shared)  # as after a lost rank: the bundles stay
of_again = ray.get([actor.visible_devices.remote() for actor in again._actors], timeout=60)
assert seen == [sorted(of_again[:2]), sorted(of_again[2:])]
print("ok")
"""


@pytest.mark.cluster
def test_a_sampler_sees_the_gpus_of_the_ranks_in_its_bundle(tmp_path):
    """GPUs are only numbers to Ray, which can be told that there are some."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'seeupo[cluster]'")
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", ON_LOGICAL_GPUS], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.strip().endswith("ok"), done.stderr


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engine": {}}, 'engine.kind = "local": expected ranks'),
        ({"collect": {"lag": 1}}, r'collect.lag = 1 with sampler.placement = "shared": expected lag = 0'),
        ({"sampler": {**SHARED, "count": 3}}, r"3 samplers of 1 GPUs and engine.trainers = 2: .* to 2 or less"),
        ({"sampler": {**SHARED, "tensor_parallel": 3}}, "expected trainers in multiples"),
    ],
)
def test_recipes_that_cannot_share_are_refused(sections, message):
    with pytest.raises(ValueError, match=message):
        small(**{"engine": CLUSTER, "sampler": SHARED, **sections})


def test_devices_are_set_before_the_sampler_is_made(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen = []
    SamplerActor().start(lambda: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]), None, 0, ("2", "3"))
    assert seen == ["2,3"]
