"""GEM environments in workers with their own interpreter."""

import pytest

from envs.textworld import hostile
from envs.worlds import HAS_SANDBOX, worker_pids
from seeupo.envs.gymnasium_text.gem import binary_search
from seeupo.envs.pool.pool import EnvPool
from seeupo.types import Message, StepResult, Task

GUESSES = ["\\boxed{}", "\\boxed{0}", "\\boxed{-1}", "\\boxed{1e9}", "\\boxed{\u0661}", "\\boxed{" + "9" * 10_000 + "}"]
MOVES = ["\\boxed{up}", "\\boxed{left}", "\\boxed{down}", "\\boxed{right}"]


@pytest.fixture(scope="module")
def pool(gem):
    with EnvPool(gem, workers=1, unsandboxed=not HAS_SANDBOX) as pool:
        yield pool


def rollout(pool, task, policy):
    env = pool.env()
    results = [env.reset(task, seed=0)]
    while not results[-1].done:
        results.append(env.step(policy(results[-1])))
    score = env.score()
    env.close()
    return results, score


def test_binary_search_finds_every_number_and_doing_nothing_none(pool):
    for task in [*pool.tasks("train")[:40], *pool.tasks("test")[:10]]:
        assert rollout(pool, task, pool.expert(task))[1] == 1.0
        assert rollout(pool, task, lambda _: "")[1] == 0.0


def test_a_task_always_has_the_same_number(pool):
    first, second = pool.tasks("test")[:2]
    alone = rollout(pool, first, pool.expert(first))[0]
    rollout(pool, second, pool.expert(second))
    assert rollout(pool, first, pool.expert(first))[0] == alone


def test_hostile_replies_do_not_break_the_worker_or_score(pool):
    before = worker_pids(pool)
    for reply in [*hostile.REFUSED, *GUESSES]:
        env = pool.env()
        env.reset(pool.tasks("test")[0], seed=0)
        result = env.step(reply)
        assert len(result.messages[0].content) < 21_000
        assert env.score() == 0.0
        env.close()
    assert worker_pids(pool) == before


def test_interleaved_games_with_the_global_generator_are_independent(gem):
    def moves(env, task):
        yield env.reset(task, seed=0)
        for move in MOVES * 2:
            yield env.step(move)

    options = {"game": "game:Game2048-v0-easy"}
    with EnvPool(gem, options=options, workers=1, unsandboxed=not HAS_SANDBOX) as pool:
        tasks = pool.tasks("train")[:2]
        alone = [list(moves(pool.env(), task)) for task in tasks]
        together = zip(*(moves(pool.env(), task) for task in tasks), strict=True)
        assert [list(results) for results in zip(*together, strict=True)] == alone
        assert alone[0] != alone[1]
        assert pool.expert(tasks[0]) is None


def test_binary_search_halves_the_range():
    def said(text):
        return StepResult((Message("user", text),))

    expert = binary_search(Task("a", "train"))
    assert expert(said("guess the number between 1 and 50 (inclusive)")) == "\\boxed{25}"
    assert expert(said("and the target number is higher than 25.")) == "\\boxed{38}"
    assert expert(said("and the target number is lower than 38.")) == "\\boxed{31}"
