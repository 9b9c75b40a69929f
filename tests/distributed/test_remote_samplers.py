"""Samplers in Ray actors: the same completions as in one process, also when actors die."""

import os
import time
from functools import partial
from pathlib import Path

import pytest

from engines.examples import check_cancel, engine, many_requests, policy, request, run
from inference.test_sync import largest_difference, train
from seeupo.config.model_settings import LoraSettings
from seeupo.config.process_settings import SamplerSettings
from seeupo.distributed.direct_transfer import DirectTransfer, direct_transfer
from seeupo.distributed.remote_samplers import RemoteSamplers
from seeupo.errors import EngineLost, ModelError, TrainingError
from seeupo.inference.local_sampler import LocalSampler
from waiting import wait_until

pytestmark = pytest.mark.cluster


def make_local(max_rows=64) -> LocalSampler:
    return LocalSampler(policy(), max_rows=max_rows)


class Unreliable(LocalSampler):
    """Fails in the middle of a request as each file in a folder says; the file is then removed."""

    def __init__(self, folder: Path, after: int = 3) -> None:
        super().__init__(policy())
        self.folder, self.polls = folder, after

    def poll(self):
        self.polls -= 1
        if self.polls < 0 and (files := sorted(self.folder.iterdir())):
            try:
                files[0].unlink()
            except FileNotFoundError:  # another sampler took it
                return super().poll()
            if "raise" in files[0].name:
                raise RuntimeError("the device is gone")
            if "hang" in files[0].name:
                time.sleep(600)
            os._exit(1)
        return super().poll()


class Stale(LocalSampler):
    """Ignores all syncs but the first."""

    def sync(self, engine, version):
        if version == 1:
            super().sync(engine, version)


def fails_to_load() -> LocalSampler:
    raise ModelError("no such model")


@pytest.fixture(scope="module")
def pair(ray_on_this_machine):
    """Two samplers that several tests use one after another, because processes take seconds to start."""
    made = RemoteSamplers(make_local, 2)
    yield made
    made.close()


@pytest.fixture
def samplers(ray_on_this_machine):
    """A function that starts samplers, which are stopped at the end."""
    started = []

    def start(make=make_local, count=2, **options):
        started.append(RemoteSamplers(make, count, **options))
        return started[-1]

    yield start
    for remote in started:
        remote.close()


def failures(folder: Path, *kinds: str) -> Path:
    for number, kind in enumerate(kinds):
        (folder / f"{number}-{kind}").touch()
    return folder


def ids_of(completions):
    return {name: completion.ids for name, completion in completions.items()}


def local_ids(local, requests):
    """Return the tokens that one sampler in this process gives with an engine's weights."""
    sampler = LocalSampler(policy())
    sampler.sync(local, 0)
    return ids_of(run(sampler, requests))


@pytest.mark.parametrize("lockstep", [False, True])
def test_completions_are_those_of_one_local_sampler(pair, lockstep, monkeypatch):
    monkeypatch.setattr(pair, "lockstep", lockstep)
    requests, local = many_requests(24), engine()
    pair.sync(local, 3)
    expected = run(LocalSampler(policy()), requests)
    completions = run(pair, requests)
    assert ids_of(completions) == ids_of(expected)
    for name, completion in completions.items():
        assert completion.logprobs == pytest.approx(expected[name].logprobs, abs=1e-12)
        assert (completion.end, completion.version) == (expected[name].end, 3)
    if lockstep:
        assert list(completions) == [
            request.id for request in requests
        ]  # the order of submission, whatever the actors' speed
    assert pair.poll() == []


def test_requests_go_to_the_sampler_of_their_episode_or_to_the_least_loaded(samplers):
    remote = samplers(count=3)
    for name, episode in [("a", "one"), ("b", "two"), ("c", None), ("d", "one"), ("e", "two"), ("f", "three")]:
        remote.submit(request(name, (1, 2, 3), episode=episode))
    assert [[waiting.id for waiting in slot.waiting] for slot in remote._slots] == [["a", "d"], ["b", "e"], ["c", "f"]]
    with pytest.raises(ValueError, match="request a is being sampled"):
        remote.submit(request("a", (1,)))


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["full", "lora"])
def test_samplers_have_the_engines_weights_after_sync(pair, lora):
    local = engine(lora=lora)
    for version in (1, 2):
        train(local)
        pair.sync(local, version)
        requests = many_requests(4)  # two per sampler
        completions = run(pair, requests)
        assert ids_of(completions) == local_ids(local, requests)
        assert {completion.version for completion in completions.values()} == {version}
        assert largest_difference(local, pair) < 1e-10
        pair.release()
        assert largest_difference(local, pair) < 1e-10


@pytest.mark.parametrize("polls", [0, 1])
def test_cancelled_requests_give_no_completion_and_others_are_unaffected(pair, polls):
    """Also those that an actor has begun; the next sync follows at once."""
    local = engine()
    pair.sync(local, 7)
    requests = [request(str(n), (1, 2, n), seed=n, max_tokens=1 if n < 2 else 60) for n in range(16)]
    check_cancel(pair, requests, run(LocalSampler(policy()), requests), polls)
    train(local)
    for sent_request in requests:
        pair.submit(sent_request)
    pair.poll()
    pair.cancel([sent_request.id for sent_request in requests])
    pair.sync(local, 8)
    assert ids_of(run(pair, requests)) == local_ids(local, requests)


def poll_all(remote):
    while remote._unfinished:
        yield from remote.poll()


def test_sync_and_release_are_refused_while_requests_are_unfinished(samplers):
    remote = samplers(count=1)
    remote.submit(request("a", (1, 2)))
    for change in (partial(remote.sync, engine(), 1), remote.release):
        with pytest.raises(RuntimeError, match="poll until all have finished"):
            change()


def test_killed_actor_loses_only_its_unfinished_requests(pair):
    import ray

    local = engine()
    pair.sync(local, 4)
    # The first answer of a sampler contains its requests of one token only, because it returns them at once.
    requests = [request(str(n), (1, 2, n), seed=n, max_tokens=1 if n < 4 else 60) for n in range(16)]
    for sent_request in requests:
        pair.submit(sent_request)
    completions = {}
    while "0" not in completions:
        completions |= {completion.id: completion for completion in pair.poll()}
    assert pair._slots[0].running
    ray.kill(pair._slots[0].actor)
    for completion in poll_all(pair):
        assert completion.id not in completions
        completions[completion.id] = completion
    assert ids_of(completions) == local_ids(local, requests)
    assert {completion.version for completion in completions.values()} == {4}


def test_requests_of_failed_samplers_run_again_with_the_same_result(samplers, tmp_path):
    remote, local = samplers(partial(Unreliable, failures(tmp_path, "exit", "raise"))), engine()
    train(local)
    remote.sync(local, 5)
    requests = many_requests(12)
    completions = run(remote, requests)
    assert not list(tmp_path.iterdir())
    assert ids_of(completions) == local_ids(local, requests)
    assert {completion.version for completion in completions.values()} == {5}
    # The replacements take part again, with the weights of the next version too.
    while any(slot.away for slot in remote._slots):
        remote.poll()
    train(local)
    remote.sync(local, 6)
    again = run(remote, requests)
    assert ids_of(again) == local_ids(local, requests)
    assert {completion.version for completion in again.values()} == {6}


def test_sampler_that_does_not_answer_is_replaced(samplers, tmp_path):
    remote, requests = samplers(partial(Unreliable, failures(tmp_path, "hang")), count=1), many_requests(4)
    for sent_request in requests:
        remote.submit(sent_request)
    completions = {}
    while list(tmp_path.iterdir()):
        completions |= {completion.id: completion for completion in remote.poll()}
    assert len(completions) < len(requests)
    remote._slots[0].deadline = 0  # its time is over
    completions |= {completion.id: completion for completion in poll_all(remote)}
    assert ids_of(completions) == ids_of(run(LocalSampler(policy()), requests))


def test_sampler_that_keeps_dying_is_one_error(samplers, tmp_path):
    remote = samplers(partial(Unreliable, failures(tmp_path, *["raise"] * 9), after=0), count=1, restarts=1)
    remote.submit(request("a", (1, 2)))
    with pytest.raises(TrainingError, match=r"sampler 0 was lost 2 times .*: the device is gone\. Look"):
        list(poll_all(remote))
    assert len(list(tmp_path.iterdir())) == 7
    remote.close()


def test_errors_of_the_user_are_raised_as_they_are(samplers):
    with pytest.raises(ModelError, match="no such model"):
        samplers(fails_to_load, count=1).sync(engine(), 1)
    remote = samplers(count=1)
    remote.submit(request("a", (1, 2), top_p=0.5))
    with pytest.raises(ValueError, match="truncated sampling"):
        list(poll_all(remote))


def test_completion_of_old_weights_is_an_error(samplers):
    remote = samplers(lambda: Stale(policy()), count=1)
    local = engine()
    remote.sync(local, 1)
    assert largest_difference(local, remote) < 1e-10
    remote.sync(local, 2)
    with pytest.raises(TrainingError, match=r"used version 1 of the weights; expected version 2\."):
        run(remote, [request("a", (1, 2))])


class DirectEngine:
    """Sends weights to the samplers' actors itself, as the cluster engine does between GPUs."""

    capabilities = frozenset({"send"})

    def __init__(self, local):
        self.local, self.sent = local, []

    def owns(self, model):
        return False

    def weights(self):
        raise AssertionError("weights must not go through this process")

    def send_weights(self, samplers, version, transfer):
        import ray

        weights = [ray.put(list(self.local.weights()))]
        ray.get([actor.load.remote(weights, version) for actor in samplers.values()], timeout=60)
        self.sent.append(sorted(samplers))


def test_direct_transfer_replaces_lost_samplers_at_the_next_sync(samplers):
    import ray

    remote, local = samplers(direct=DirectTransfer("nccl", 1, "float64")), engine()
    source = DirectEngine(local)
    train(local)
    remote.sync(source, 1)
    ray.kill(remote._slots[0].actor)
    completions = run(remote, many_requests(8))
    assert {completion.version for completion in completions.values()} == {1}
    assert largest_difference(local, remote) < 1e-10
    while remote._slots[0].call is not None:
        remote.poll()
    assert remote._slots[0].away  # it has started, but has no weights
    run(remote, many_requests(4))
    train(local)
    remote.sync(source, 2)
    assert source.sent == [[0, 1], [0, 1]]
    assert not any(slot.away for slot in remote._slots)
    for slot in remote._slots:
        ray.kill(slot.actor)
    with pytest.raises(EngineLost, match="only the trainer has the weights"):
        run(remote, many_requests(4))
    remote.sync(source, 2)
    assert largest_difference(local, remote) < 1e-10
    with pytest.raises(TypeError, match='LocalEngine lacks the capability "send"'):
        remote.sync(local, 3)


def sample_forever(remote):
    while True:
        remote.submit(request("a", (1, 2)))
        list(poll_all(remote))


def test_samplers_on_lost_nodes_are_replaced_if_others_have_room(samplers, simulated_nodes, ray_on_this_machine):
    requests, local = many_requests(12), engine()
    with pytest.MonkeyPatch.context() as patch, simulated_nodes(1, 1) as nodes:
        remote = samplers()
        remote.sync(local, 1)
        for request in requests:
            remote.submit(request)
        ray_on_this_machine.remove_node(nodes[0], allow_graceful=False)
        assert ids_of({completion.id: completion for completion in poll_all(remote)}) == local_ids(local, requests)
        patch.setattr("seeupo.distributed.ray_cluster.RESERVE_SECONDS", 1.0)
        ray_on_this_machine.remove_node(nodes[1], allow_graceful=False)
        with pytest.raises(TrainingError, match=r"the Ray cluster has \d+ CPU .* needs 2 CPU in 2 processes\."):
            sample_forever(remote)  # a process may outlive its node for a moment


def test_close_is_idempotent_and_frees_the_reserved_resources(samplers):
    import ray

    remote = samplers()
    bundles = remote._bundles.group
    assert ray.util.placement_group_table(bundles)["state"] == "CREATED"
    remote.close()
    remote.close()
    wait_until(lambda: ray.util.placement_group_table(bundles)["state"] == "REMOVED")


def test_weights_are_transferred_directly_between_gpus_of_a_cluster_only():
    settings = SamplerSettings(kind="vllm", count=1, tensor_parallel=2)
    assert direct_transfer(settings, cluster=True, device="cuda", dtype="bfloat16") == DirectTransfer(
        "nccl", 2, "bfloat16"
    )
    shared = SamplerSettings(kind="vllm", count=1, placement="shared")
    assert direct_transfer(shared, cluster=True, device="cuda:0", dtype="bfloat16").backend == "ipc"
    for other in (
        direct_transfer(settings, cluster=False, device="cuda", dtype="bfloat16"),
        direct_transfer(settings, cluster=True, device="cuda", dtype="bfloat16", adapters=True),
        direct_transfer(settings, cluster=True, device="cpu", dtype="float32"),
        direct_transfer(SamplerSettings(count=1), cluster=True, device="cuda", dtype="float32"),
    ):
        assert other is None
