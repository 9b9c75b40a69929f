"""Episodes in workers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envs.bfcl import hostile
from envs.worlds import worker_pids
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.registry import EnvSpec
from seeupo.errors import EnvError
from seeupo.types import StepResult, Task


@pytest.fixture(scope="module")
def pool(bfcl: EnvSpec) -> Iterator[EnvPool]:
    with EnvPool(bfcl, workers=2) as pool:
        yield pool


def score(pool: EnvPool, task: Task, policy: Callable[[StepResult], str]) -> float:
    env = pool.env()
    result = env.reset(task, seed=0)
    while not result.done:
        result = env.step(policy(result))
    final = env.score()
    env.close()
    return final


def expert_scores(pool: EnvPool, split: str) -> set[float]:
    scores = set()
    for task in pool.tasks(split)[::8]:
        expert = pool.expert(task)
        assert expert is not None
        scores.add(score(pool, task, expert))
    return scores


@pytest.mark.parametrize("split", ["base", "miss_func", "miss_param", "long_context"])
def test_the_expert_solves_tasks_and_a_no_op_policy_does_not(pool: EnvPool, split: str) -> None:
    assert expert_scores(pool, split) == {1.0}
    assert {score(pool, task, lambda _: "I cannot help.") for task in pool.tasks(split)[::8]} == {0.0}


def test_the_expert_solves_with_tool_calls(bfcl: EnvSpec) -> None:
    options = {"action_format": "tool_call", "documentation": "signatures", "expert_step": "call"}
    with EnvPool(bfcl, options=options, workers=1) as pool:
        assert expert_scores(pool, "miss_func") == {1.0}


def test_hostile_actions_do_not_break_workers(pool: EnvPool, tmp_path: Path) -> None:
    canary = str(tmp_path / "canary")
    task = pool.tasks("base")[16]
    actions = [
        *hostile.refused_python(canary),
        *[f"[{name}()]" for name in hostile.UNREACHABLE],
        *[f"[{call}]" for call in hostile.unharmful_calls(canary)],
    ]
    before = worker_pids(pool)
    for action in actions:
        env = pool.env()
        env.reset(task, seed=0)
        result = env.step(action)
        assert result.messages
        assert {message.role for message in result.messages} <= {"tool", "user"}
        assert env.score() == 0.0
        env.close()
    assert worker_pids(pool) == before
    assert not Path(canary).exists()
    expert = pool.expert(task)
    assert expert is not None
    assert score(pool, task, expert) == 1.0


@pytest.mark.parametrize(
    "options", [{"max_step": 10}, {"max_steps": "10"}, {"documentation": "short"}, {"action_format": "json"}]
)
def test_wrong_options_are_errors(bfcl: EnvSpec, options: dict[str, object]) -> None:
    with pytest.raises(EnvError, match=next(iter(options))):
        EnvPool(bfcl, options=options, workers=1)
