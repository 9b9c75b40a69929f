import asyncio
import contextlib
import threading

import openai
import pytest

from seeupo.config.model_settings import TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.envs.pocket import PocketFactory
from seeupo.envs.pool.pool import EnvPool
from seeupo.inference import make_sampler
from seeupo.models.loading import load_policy
from seeupo.rollout.gateway.gateway import Gateway
from seeupo.rollout.groups import group_attempts
from seeupo.rollout.runner import Runner
from seeupo.types import Attempt, FailureKind, SamplingParameters, StopReason, Task

TINY = TinyConfig(width=32, layers=2, heads=2, context=512)
POLICY = load_policy("tiny", tiny=TINY)
TASK = Task("a", "train", payload={"question": "hi"})
POCKET = PocketFactory()


@contextlib.contextmanager
def gateway(program, **settings):
    parameters = SamplingParameters(max_tokens=settings.pop("max_tokens", 8))
    sampler = settings.pop("sampler", None) or make_sampler(POLICY)
    with contextlib.closing(Gateway(POLICY, program, sampler, parameters=parameters, **settings)) as running:
        yield running


def attempts(count, task=TASK):
    return [Attempt(f"e{number:03}", "g", task, seed=number) for number in range(count)]


def run(program, count=4, **settings):
    with gateway(program, **settings) as running:
        return sorted(running.run(attempts(count)), key=lambda trajectory: trajectory.id)


def entry(message):
    return {"role": message.role, "content": message.content}


async def solve_pocket(task, client):
    """What a user's program for the environment would be."""
    env = POCKET.make()
    result = env.reset(task, seed=0)
    history = []
    for _ in range(3):
        history += map(entry, result.messages)
        completion = await client.chat.completions.create(model="policy", messages=history)
        answer = completion.choices[0].message.content
        history.append({"role": "assistant", "content": answer})
        result = env.step(answer)
        if result.done:
            break
    return env.score()


def test_a_program_gives_the_trajectories_of_the_runner():
    """The same prompts, ids, log-probs and scores."""
    with EnvPool(POCKET) as pool:
        chosen = group_attempts(pool.first_tasks("train", 8), 8, seed=5)
        runner = Runner(POLICY, pool, parameters=SamplingParameters(max_tokens=8), max_turns=3)
        expected = {trajectory.id: trajectory for trajectory in runner.run(chosen)}
    with gateway(solve_pocket, max_turns=3) as running:
        through = {trajectory.id: trajectory for trajectory in running.run(chosen)}
    assert len(through) == 64
    for name, trajectory in expected.items():
        assert through[name].failure is None
        assert [turn_facts(turn) for turn in through[name].turns] == [turn_facts(turn) for turn in trajectory.turns]
        assert through[name].score == trajectory.score
        assert through[name].turn_texts == tuple(
            text if number + 1 < len(trajectory.turns) else type(text)(text.response)
            for number, text in enumerate(trajectory.turn_texts)
        )


def turn_facts(turn):
    return turn.key, turn.prompt_ids, turn.action_ids, turn.behavior_logprobs, turn.policy_version


def test_recorded_log_probs_are_those_of_the_policy():
    """Also for calls in parallel and a history that the program rewrites."""

    async def solve(task, client):
        async def ask(*contents):
            messages = [
                {"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, contents, strict=False)
            ]
            completion = await client.chat.completions.create(model="policy", messages=messages)
            return completion.choices[0].message.content

        first = await ask("one")
        branches = await asyncio.gather(ask("one", first, "two"), ask("one", "rewritten", "two"), ask("three"))
        await ask("one", first, "two", branches[0])
        return 1.0

    trajectories = run(solve)
    engine = LocalEngine(POLICY, OptimizerSettings())
    for trajectory in trajectories:
        assert (trajectory.failure, len(trajectory.turns), trajectory.stop) == (None, 5, StopReason.GOAL)
        first = trajectory.turns[0]
        grown = first.prompt_ids + first.action_ids
        assert sum(turn.prompt_ids[: len(grown)] == grown for turn in trajectory.turns[1:]) == 2
        for turn, row in zip(trajectory.turns, engine.logprobs(trajectory.turns), strict=True):
            assert list(turn.behavior_logprobs) == pytest.approx(row.tolist(), abs=1e-5)


def test_functions_and_coroutines_give_the_same_trajectories():
    def solve(task, client):
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task.payload["question"]}])
        return {"score": 0.5, "rewards": [0.25]}

    async def solve_async(task, client):
        await client.responses.create(model="policy", input=task.payload["question"])
        return {"score": 0.5, "rewards": [0.25]}

    trajectories = run(solve)
    assert [trajectory.turns for trajectory in trajectories] == [t.turns for t in run(solve_async)]
    assert {(trajectory.score, trajectory.turns[0].reward) for trajectory in trajectories} == {(0.5, 0.25)}


async def ask(client, **arguments):
    return await client.chat.completions.create(
        **{"model": "policy", "messages": [{"role": "user", "content": "hi"}], **arguments}
    )


@pytest.mark.parametrize(
    ("result", "kind", "problem"),
    [
        (None, FailureKind.OTHER, "returned None; expected its score"),
        ("1", FailureKind.OTHER, "returned '1'; expected its score"),
        (float("nan"), FailureKind.OTHER, "returned nan; expected its score"),
        ({"rewards": [1]}, FailureKind.OTHER, "expected its score"),
        (ZeroDivisionError("in the program"), FailureKind.RAISED, "ZeroDivisionError: in the program"),
    ],
)
def test_programs_without_a_score_fail(result, kind, problem):
    async def solve(task, client):
        if isinstance(result, Exception):
            raise result
        return result

    for trajectory in run(solve):
        assert (trajectory.score, trajectory.stop) == (None, StopReason.FAILURE)
        assert trajectory.failure.kind is kind
        assert problem in trajectory.failure.message


def test_limits_that_the_policy_reaches_end_the_episode_with_score_0():
    async def calls(task, client):
        while True:
            await ask(client)

    async def fills_context(task, client):
        await ask(client)
        await ask(client, messages=[{"role": "user", "content": "long " * 500}])

    turns, context = run(calls, max_turns=3), run(fills_context)
    assert {(t.score, t.stop, len(t.turns), t.failure) for t in turns} == {(0.0, StopReason.TURN_LIMIT, 3, None)}
    assert {(t.score, t.stop, len(t.turns), t.failure) for t in context} == {(0.0, StopReason.CONTEXT_LIMIT, 1, None)}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_program_that_never_returns_fails_and_disturbs_no_other(is_async):
    released = threading.Event()

    async def sleeps(task, client):
        await ask(client)
        if task.id == "stuck":
            await asyncio.sleep(10_000)
        return 1.0

    def waits(task, client):
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
        if task.id == "stuck":
            released.wait()
        return 1.0

    tasks = [Task("stuck", "train"), TASK]
    with gateway(sleeps if is_async else waits, episode_seconds=3.0) as running:
        found = {t.task: t for t in running.run([Attempt(task.id, "g", task, seed=0) for task in tasks])}
    released.set()
    assert found["stuck"].failure.kind is FailureKind.TIMED_OUT
    assert found["a"].score == 1.0


def test_other_distributions_are_refused_and_the_program_may_go_on():
    async def solve(task, client):
        for arguments in ({"temperature": 0.5}, {"top_p": 0.9}, {"n": 2}, {"presence_penalty": 1}):
            with pytest.raises(openai.BadRequestError):
                await ask(client, **arguments)
        await ask(client, temperature=1, max_tokens=3, tool_choice="required")
        return 1.0

    for trajectory in run(solve):
        assert trajectory.failure is None
        (turn,) = trajectory.turns
        assert len(turn.action_ids) <= 3


def test_keys_end_with_their_episodes_and_the_run():
    keys = {}
    statuses = []

    async def solve(task, client):
        keys[task.id] = client.api_key
        await ask(client)
        if task.id == "later":
            for key in ("0" * 32, keys["first"]):
                with pytest.raises(openai.APIStatusError) as refused:
                    await ask(client.with_options(api_key=key, max_retries=0))
                statuses.append(refused.value.status_code)
        return 1.0

    tasks = [Task("first", "train"), Task("later", "train")]
    with gateway(solve, concurrency=1) as running:
        trajectories = list(running.run([Attempt(task.id, "g", task, seed=0) for task in tasks]))
        client = openai.OpenAI(base_url=running._address, api_key=keys["later"], max_retries=0)
        with pytest.raises(openai.APIStatusError) as refused:
            client.models.list()
    assert [trajectory.failure for trajectory in trajectories] == [None, None]
    assert statuses == [401, 409]
    assert refused.value.status_code == 503


def test_an_interrupted_run_ends_its_episodes_and_can_be_followed_by_another():
    async def solve(task, client):
        while True:
            await ask(client)

    with gateway(solve, max_turns=2, concurrency=2) as running:
        episodes = running.run(attempts(4))
        next(episodes)
        episodes.close()
        assert len(list(running.run(attempts(4)))) == 4


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_do_not_go_through_a_proxy(monkeypatch, is_async):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def solve(task, client):
        await ask(client)
        return 1.0

    def solve_in_thread(task, client):
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
        return 1.0

    (trajectory,) = run(solve if is_async else solve_in_thread, 1)
    assert trajectory.score == 1.0


def test_256_concurrent_programs():
    async def solve(task, client):
        for _ in range(2):
            await ask(client)
        return 1.0

    trajectories = run(solve, 256, concurrency=256, max_tokens=2)
    assert [trajectory.failure for trajectory in trajectories] == [None] * 256
    assert {len(trajectory.turns) for trajectory in trajectories} == {2}
