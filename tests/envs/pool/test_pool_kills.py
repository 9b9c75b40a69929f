"""500 episodes in flight on 8 workers that are killed at random: every episode ends, once, scored or failed."""

import random
import threading
from collections import Counter

import pytest

from envs.worlds import HAS_SANDBOX, TOY, alive, children, kill
from seeupo.envs.failures import EnvFailure, WorkerLost
from seeupo.envs.pool.pool import EnvPool

EPISODES = 500
WORKERS = 8
KILLS = 40
GUARD_SECONDS = 120


class Game:
    """Plays one episode through callbacks, so that all are in flight at once, until there were kills enough."""

    def __init__(self, pool, task, kills, finished):
        self.kills = kills
        self.ends = []
        self.seen = []
        self.finished = finished
        self.episode = pool.start(task, 0)
        self.episode.reset().add_done_callback(self.follow)

    def follow(self, future):
        try:
            result = future.result()
        except EnvFailure as failure:
            self.end(failure)
            return
        self.seen.append(result.messages[0].content)
        if len(self.seen) < 6 or self.kills[True] < KILLS:
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
    draw = random.Random(seed)
    before = children()
    finished = threading.Semaphore(0)
    stop = threading.Event()
    kills, family = Counter(), set()

    def killer(pool):
        while not stop.wait(draw.uniform(0.0, 0.1)):
            family.update(children() - before)
            if victims := pool.worker_pids:
                kills[kill(draw.choice(victims))] += 1

    with EnvPool(TOY, workers=WORKERS, unsandboxed=not HAS_SANDBOX) as pool:
        task = pool.tasks("train")[0]
        task = type(task)(task.id, task.split, payload={"target": -1})
        games = [Game(pool, task, kills, finished) for _ in range(EPISODES)]
        thread = threading.Thread(target=killer, args=[pool])
        thread.start()
        try:
            for _ in games:
                assert finished.acquire(timeout=GUARD_SECONDS), "an episode was lost"
        finally:
            stop.set()
            thread.join()
        assert len(pool.worker_pids) <= WORKERS
    assert not finished.acquire(blocking=False)
    assert not alive(family | (children() - before))
    ends = [end for game in games for end in game.ends]
    assert len(ends) == EPISODES
    failed = [end for end in ends if isinstance(end, BaseException)]
    assert all(type(failure) is WorkerLost and failure.task == "train-0" for failure in failed)
    assert kills[True] >= KILLS
    assert len(failed) < EPISODES / 2
    for game in games:
        assert game.seen == ["count to -1", *map(str, range(1, len(game.seen)))][: len(game.seen)]
        assert game.ends == [0.0] or isinstance(game.ends[0], WorkerLost)
