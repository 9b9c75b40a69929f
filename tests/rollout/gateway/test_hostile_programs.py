"""Programs that flood the gateway or use keys that are not theirs, beside episodes that must not be disturbed."""

import asyncio
from collections import Counter

import openai
import pytest

from rollout.gateway.scripted import run
from seeupo.rollout.gateway import server
from seeupo.rollout.gateway.gateway import MAX_IN_FLIGHT
from seeupo.types import FailureKind, StopReason, Task

ORDINARY = [Task(f"ordinary {number}", "train") for number in range(8)]
QUESTION = {"role": "user", "content": "hi"}


async def ask(client, *history):
    messages = [QUESTION, *history]
    completion = await client.chat.completions.create(model="policy", messages=messages)
    return completion.choices[0].message.content


async def ordinary(task, client):
    for _ in range(3):
        answer = await ask(client)
        assert await ask(client, {"role": "assistant", "content": answer}, QUESTION)
    return 1.0


def run_beside(hostile):
    """Run a hostile program beside ordinary ones, and return its trajectory; theirs are those that they have alone."""

    async def solve(task, client):
        if task.id == "hostile":
            async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0) as own:
                return await hostile(own)
        return await ordinary(task, client)

    script = [f"answer {number}" for number in range(10)]
    alone = run(solve, *script, tasks=ORDINARY)
    beside = run(solve, *script, tasks=[Task("hostile", "train"), *ORDINARY])
    for task, trajectory in alone.items():
        assert beside[task].failure is None
        assert (beside[task].score, beside[task].turns) == (1.0, trajectory.turns)
        assert len(trajectory.turns) == 6
    return beside["hostile"]


def test_a_program_that_floods_ends_at_its_limit_of_calls():
    async def flood(client):
        await asyncio.gather(*(ask(client) for _ in range(1000)), return_exceptions=True)
        await asyncio.sleep(10_000)

    trajectory = run_beside(flood)
    assert (trajectory.score, trajectory.stop, trajectory.failure) == (0.0, StopReason.TURN_LIMIT, None)
    assert len(trajectory.turns) <= 10


def test_calls_beyond_those_that_may_wait_are_refused(monkeypatch):
    statuses = Counter()

    async def flood(client):
        for answer in await asyncio.gather(*(ask(client) for _ in range(300)), return_exceptions=True):
            statuses[getattr(answer, "status_code", 200)] += 1
        return 1.0

    async def solve(task, client):
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0) as own:
            return await flood(own)

    trajectory = run(solve, "x", max_turns=1000)["a"]
    assert trajectory.failure is None
    assert len(trajectory.turns) == statuses[200] >= MAX_IN_FLIGHT
    assert statuses[429] == 300 - statuses[200]


def test_a_program_that_sends_100_mb_is_refused():
    async def send(client):
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(client, {"role": "user", "content": "x" * 100_000_000})
        assert refused.value.status_code == 413
        assert f"more than {server.MAX_BODY_BYTES} bytes" in refused.value.message
        await ask(client)
        return 1.0

    trajectory = run_beside(send)
    assert trajectory.failure is None
    assert len(trajectory.turns) == 1


def test_a_program_that_uses_other_keys_is_refused():
    keys, statuses = {}, []

    async def solve(task, client):
        keys[task.id] = client.api_key
        if task.id == "first":
            return 1.0
        await ask(client)
        for key in ("0" * 32, keys["first"], keys["first"][:-1], client.api_key + "0", "x" * 10_000):
            with pytest.raises(openai.APIStatusError) as refused:
                await ask(client.with_options(api_key=key, max_retries=0))
            statuses.append(refused.value.status_code)
        return 1.0

    tasks = [Task("first", "train"), Task("other", "train")]
    trajectories = run(solve, "x", tasks=tasks, concurrency=1)
    assert [trajectory.failure for trajectory in trajectories.values()] == [None, None]
    assert [len(trajectories[name].turns) for name in ("first", "other")] == [0, 1]
    assert statuses == [401, 409, 401, 401, 401]


def test_a_program_that_raises_while_its_calls_are_in_flight_fails():
    async def leave(client):
        async with asyncio.TaskGroup() as calls:
            for _ in range(5):
                calls.create_task(ask(client))
            await asyncio.sleep(0.01)
            raise RuntimeError("gone")

    trajectory = run_beside(leave)
    assert trajectory.failure.kind is FailureKind.RAISED
    assert trajectory.score is None
