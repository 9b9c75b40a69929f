"""Tests of the environment. Run them with: pytest test_NAME.py."""

from __future__ import annotations

from seeupo.envs.skeleton.environment import SkeletonFactory

factory = SkeletonFactory()
TASKS = [task for split in factory.splits for task in factory.tasks(split)]


def test_task_ids_are_unique() -> None:
    assert len({task.id for task in TASKS}) == len(TASKS)


def test_the_expert_solves_every_task() -> None:
    for task in TASKS:
        env, expert = factory.make(), factory.expert(task)
        assert expert is not None
        result = env.reset(task, seed=0)
        while not result.done:
            result = env.step(expert(result))
        assert env.score() == 1.0
        env.close()


def test_nonsense_is_neither_an_exception_nor_a_success() -> None:
    for text in ("", "report", "report it", "open open", "\0", "9" * 10_000):
        env = factory.make()
        env.reset(TASKS[0], seed=0)
        env.step(text)
        assert env.score() == 0.0
        env.close()


def test_the_same_actions_give_the_same_results() -> None:
    results = []
    for seed in (0, 0):
        env = factory.make()
        results.append([env.reset(TASKS[0], seed=seed), env.step("open")])
        env.close()
    assert results[0] == results[1]
