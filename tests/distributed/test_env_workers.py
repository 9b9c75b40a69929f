"""Workers on other nodes of a simulated Ray cluster."""

import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from envs.worlds import RESET, TOY, everywhere, launch
from seeupo.distributed.env_workers import RemoteWorker
from seeupo.distributed.ray_cluster import other_nodes
from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.pool.worker import Worker
from seeupo.errors import EnvError

pytestmark = pytest.mark.cluster


def say(episode, text):
    return episode.step(text).result().messages[0].content


def started(pool, count):
    task = pool.tasks("train")[0]
    episodes = [pool.start(task, seed) for seed in range(count)]
    for episode in episodes:
        episode.reset().result()
    return episodes


def remote_slots(pool):
    return [slot for slot in pool._scheduler.slots if slot.start is not Worker]


def node_of(slot):
    import ray

    node = slot.backend._actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    return ray.get(node, timeout=60)


@everywhere
def test_episodes_on_other_nodes_survive_the_loss_of_their_node(simulated_nodes, ray_on_this_machine, unsandboxed):
    with simulated_nodes(1, 1) as nodes, EnvPool(TOY, workers=1, unsandboxed=unsandboxed) as pool:
        pool.spread({node.node_id: partial(RemoteWorker, node=node.node_id) for node in nodes})
        episodes = started(pool, 6)  # two per worker
        assert [len(slot.episodes) for slot in pool._scheduler.slots] == [2, 2, 2]
        assert all(isinstance(slot.backend, RemoteWorker) for slot in remote_slots(pool))
        assert [say(episode, "add 10") for episode in episodes] == [str(seed + 10) for seed in range(6)]
        assert [node_of(slot) for slot in remote_slots(pool)] == [node.node_id for node in nodes]
        ray_on_this_machine.remove_node(nodes[0], allow_graceful=False)
        while nodes[0].node_id in other_nodes():  # processes may outlive their node for a moment
            time.sleep(0.1)
        assert [say(episode, "add 10") for episode in episodes] == [str(seed + 20) for seed in range(6)]
        assert [episode.score().result() for episode in episodes] == [0.0] * 6
        assert [slot.generation for slot in remote_slots(pool)] == [2, 1]  # the episodes of the first were replayed


def step(text):
    return {"op": "step", "session": "1", "text": text}


@pytest.fixture
def this_node(ray_on_this_machine):
    import ray

    return ray.get_runtime_context().get_node_id()


def test_errors_are_those_of_a_worker_on_this_machine(this_node):
    workers = [Worker(launch(True)), RemoteWorker(launch(True), node=this_node)]
    seen = []
    for worker in workers:
        worker.load()
        worker.call(RESET)
        with pytest.raises(EnvError) as usage:
            worker.call(step("usage of the toy"))
        with pytest.raises(WorkerFailure) as failure:
            worker.call(step("exit 3"))
        seen.append((str(usage.value), failure.value.cause, failure.value.reason))
        worker.discard()
    assert seen[0] == seen[1]
    assert seen[0][1] is FailureCause.CRASH


def test_a_running_call_can_be_killed(this_node):
    worker = RemoteWorker(launch(True), node=this_node)
    worker.load()
    worker.call(RESET)
    threading.Timer(0.5, worker.kill).start()
    with pytest.raises(WorkerFailure) as failure:
        worker.call(step("hang"))
    assert failure.value.cause is FailureCause.KILLED
    worker.discard()


def test_a_node_that_cannot_run_workers_is_an_error_at_the_start(this_node):
    with EnvPool(TOY, workers=1, unsandboxed=True) as pool:
        slot = pool._scheduler.slots[0]
        slot.source = replace(slot.source, python=Path("/nowhere/python"))
        with pytest.raises(EnvError, match=f"node {this_node} of the Ray cluster cannot run toy: .*/nowhere/python"):
            pool.spread({this_node: partial(RemoteWorker, node=this_node)})
