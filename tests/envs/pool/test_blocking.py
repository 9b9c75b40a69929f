"""Environments that block forever, and clocks that jump: calls end when they should, and only then."""

import itertools
import threading
import time

import pytest

from envs.toy import ToyFactory
from envs.worlds import HANG_SECONDS, HAS_SANDBOX, TOY, everywhere, failing, observation, step
from seeupo.envs.failures import FailureCause, WorkerFailure
from seeupo.envs.pool import slot
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.pool.worker import Worker
from seeupo.types import FailureKind, Task

TASK = Task("one", "train", payload={"target": 3})
DAY = 86400.0


def run_expert(pool):
    result = pool.start(TASK, 0).reset().result()
    return pool.expert(TASK)(result)


def run_episode(pool):
    episode = pool.start(TASK, 0)
    episode.reset().result()
    episode.score().result()
    episode.close().result()


CALLS = {
    "tasks": lambda pool: pool.tasks("train"),
    "reset": run_episode,
    "score": run_episode,
    "close": run_episode,
    "expert": run_expert,
    "advise": run_expert,
}


@pytest.mark.parametrize("op", CALLS)
def test_a_call_that_blocks_forever_times_out(monkeypatch, op):
    """The next call gets a fresh worker."""
    call = Worker.call

    def impatient(worker, request, *, seconds=None):
        return call(worker, request, seconds=HANG_SECONDS if request["op"] == op else seconds)

    monkeypatch.setattr(Worker, "call", impatient)
    with EnvPool(TOY, options={"blocks": op}, workers=1, unsandboxed=not HAS_SANDBOX) as pool:
        with failing(FailureKind.TIMED_OUT, match=f"{op} failed: no answer within"):
            CALLS[op](pool)
        assert pool.vocabulary() == ()


def test_a_factory_that_blocks_this_process_does_not_block_the_end(monkeypatch):
    """Its running call and the calls behind it fail when the pool is closed."""
    monkeypatch.setattr(slot, "JOIN_SECONDS", 0.1)
    entered, released = threading.Event(), threading.Event()

    class Blocking(ToyFactory):
        def block(self, op):
            if op == "reset":
                entered.set()
                released.wait()

    pool = EnvPool(Blocking())
    running, queued = pool.start(TASK, 0).reset(), pool.start(TASK, 0).reset()
    entered.wait()
    thread = pool._scheduler.slots[0].thread
    pool.close()
    for future in (running, queued):
        with failing(FailureKind.POOL_CLOSED):
            future.result(timeout=0)
    late = pool._scheduler.slots[0].submit(lambda slot: None)
    with failing(FailureKind.POOL_CLOSED):
        late.result(timeout=0)
    released.set()
    thread.join()  # it ends in order, although its call was given up


@everywhere
@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["forward", "backward"])
def test_a_clock_that_jumps_neither_shortens_nor_extends_calls(started, unsandboxed, monkeypatch, jump):
    """As after a correction by NTP, at every look at the clock."""
    now, jumps = time.time(), itertools.count(1)
    monkeypatch.setattr(time, "time", lambda: now + jump * next(jumps))
    worker = started(unsandboxed)
    assert observation(worker, "add 1") == "1"
    assert worker.call({"op": "score", "session": "1"}, seconds=600) == 0.0
    with pytest.raises(WorkerFailure) as failure:
        worker.call({"op": "step", "session": "1", "text": "hang"}, seconds=HANG_SECONDS)
    assert failure.value.cause is FailureCause.TIMEOUT
    with pytest.raises(WorkerFailure) as failure:
        step(started(unsandboxed), "stop")
    assert failure.value.cause is FailureCause.STOPPED
