"""500 concurrent episodes on 8 workers that are killed at random: every episode ends once, scored or failed."""

import random
import threading
from collections import Counter

import pytest

from envs.worlds import HAS_SANDBOX, TOY, alive, children, kill, worker_pids
from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.pool import EnvPool
from seeupo.types import FailureKind, Task

EPISODES = 500
WORKERS = 8
KILLS = 40
ANSWERS_PER_KILL = 60
GUARD_SECONDS = 600


class Killer:
    """Kills a random worker after every few answers, so that the kills do not depend on the machine's speed."""

    def __init__(self, pool, seed):
        self.pool = pool
        self.random = random.Random(seed)
        self.kills = Counter()
        self.seen = set()

    def after_answer(self):
        if self.random.random() < 1 / ANSWERS_PER_KILL and (victims := worker_pids(self.pool)):
            self.seen |= children()
            self.kills[kill(self.random.choice(victims))] += 1


class Rollout:
    """Runs one episode through callbacks, so that all are in flight at once, until there were enough kills."""

    def __init__(self, pool, task, killer, finished):
        self.killer = killer
        self.finished = finished
        self.ends = []
        self.seen = []
        self.episode = pool.start(task, 0)
        self.episode.reset().add_done_callback(self.follow)

    def follow(self, future):
        try:
            result = future.result()
        except EnvFailure as failure:
            self.end(failure)
            return
        self.seen.append(result.messages[0].content)
        self.killer.after_answer()
        if len(self.seen) < 6 or self.killer.kills[True] < KILLS:
            self.episode.step("add 1").add_done_callback(self.follow)
        else:
            self.episode.score().add_done_callback(self.scored)

    def scored(self, future):
        self.end(future.exception() or future.result())

    def end(self, how):
        self.ends.append(how)
        self.episode.close().add_done_callback(lambda _: self.finished.release())


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_killed_at_random_lose_no_episode(seed):
    before = children()
    finished = threading.Semaphore(0)
    with EnvPool(TOY, workers=WORKERS, unsandboxed=not HAS_SANDBOX) as pool:
        killer = Killer(pool, seed)
        task = Task("endless", "train", payload={"target": -1})
        rollouts = [Rollout(pool, task, killer, finished) for _ in range(EPISODES)]
        for _ in rollouts:
            assert finished.acquire(timeout=GUARD_SECONDS), "an episode was lost"
        assert len(worker_pids(pool)) <= WORKERS
    assert not finished.acquire(blocking=False)
    assert not alive((killer.seen | children()) - before)
    ends = [end for rollout in rollouts for end in rollout.ends]
    assert len(ends) == EPISODES
    failed = [end for end in ends if isinstance(end, BaseException)]
    assert all(failure.kind is FailureKind.WORKER_LOST and failure.task == "endless" for failure in failed)
    assert killer.kills[True] >= KILLS
    assert 2 * len(failed) <= killer.kills[True]  # a call fails only if two workers are killed under it
    for rollout in rollouts:
        assert rollout.seen == ["count to -1", *map(str, range(1, len(rollout.seen)))][: len(rollout.seen)]
        assert rollout.ends == [0.0] or rollout.ends[0].kind is FailureKind.WORKER_LOST
