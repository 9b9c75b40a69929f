"""Programs that call the policy in several roles, and calls that are given up."""

import asyncio
import contextlib
import threading

import openai
import pytest
import torch

from rollout.gateway.test_gateway import POLICY, TINY
from seeupo.algorithms import SeeUPO
from seeupo.config.model_settings import LoraSettings
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.inference import make_sampler
from seeupo.inference.local_sampler import LocalSampler
from seeupo.models.loading import load_policy
from seeupo.rollout.gateway.gateway import Gateway
from seeupo.types import Attempt, SamplingParameters, Task
from seeupo.utils.seeds import derive_seed

TASK = Task("a", "train")


class SpyingSampler(LocalSampler):
    """Records requests; the first with a limit of 7 tokens is held back until it is cancelled."""

    def __init__(self, policy=POLICY):
        super().__init__(policy)
        self.requests = []
        self.held = {}
        self.holds, self.cancelled = threading.Event(), threading.Event()

    def submit(self, request):
        self.requests.append(request)
        if request.parameters.max_tokens == 7 and not self.holds.is_set():
            self.held[request.id] = request
            self.holds.set()
        else:
            super().submit(request)

    def cancel(self, ids):
        ids = set(ids)
        super().cancel(ids)
        for name in ids & self.held.keys():
            del self.held[name]
            self.cancelled.set()


@contextlib.contextmanager
def gateway(program, sampler=None, policy=POLICY, **settings):
    parameters = SamplingParameters(max_tokens=8)
    with contextlib.closing(
        Gateway(policy, program, sampler or make_sampler(policy), parameters=parameters, **settings)
    ) as running:
        yield running


def run(program, count=4, **settings):
    with gateway(program, **settings) as running:
        attempts = [Attempt(f"e{n:03}", str(n // 4), TASK, seed=n) for n in range(count)]
        return sorted(running.run(attempts), key=lambda trajectory: trajectory.id)


async def ask(client, text, role="", **arguments):
    """Call the policy in a role, which is part of the address."""
    if role:
        base = str(client.base_url).rstrip("/").removesuffix("/v1")
        client = client.with_options(base_url=f"{base}/e/{client.api_key}/{role}/v1", max_retries=0)
    messages = [{"role": "user", "content": text}]
    completion = await client.chat.completions.create(model="policy", messages=messages, **arguments)
    return completion.choices[0].message.content


async def plan_and_work(task, client):
    """A planner, two calls of a worker in parallel with one of a critic, and the planner again."""
    await ask(client, "plan", "planner")
    first = await asyncio.gather(ask(client, "work", "worker"), ask(client, "judge", "critic"))
    await ask(client, f"work on {first[0]}", "worker")
    await ask(client, "end", "planner")
    return 1.0


def test_turns_have_their_roles_and_seeds_of_their_role_in_the_order_of_their_starts():
    sampler = SpyingSampler()
    trajectories = run(plan_and_work, sampler=sampler)
    for trajectory in trajectories:
        roles = [turn.agent_role for turn in trajectory.turns]
        assert roles[0] == roles[4] == "planner"
        assert sorted(roles[1:3]) == ["critic", "worker"]
        assert roles[3] == "worker"
        assert [turn.index for turn in trajectory.turns] == [0, 1, 2, 3, 4]
    seeds = {(request.episode, request.seed) for request in sampler.requests}
    expected = [("planner", 0), ("worker", 0), ("critic", 0), ("worker", 1), ("planner", 1)]
    assert seeds == {
        (f"e{n:03}/{role}", derive_seed(n, f"e{n:03}", role, index, bits=63))
        for n in range(4)
        for role, index in expected
    }


def test_parallel_roles_give_the_same_turns_whichever_calls_first():
    def program(swapped):
        async def solve(task, client):
            calls = [("worker", "work"), ("critic", "judge")]
            await asyncio.gather(*(ask(client, text, role) for role, text in calls[:: -1 if swapped else 1]))
            return 1.0

        return solve

    one, other = (
        [turn for tau in run(solve) for turn in sorted(tau.turns, key=lambda turn: turn.agent_role)]
        for solve in (program(False), program(True))
    )
    # Calls that arrive after the sampler has begun are in another batch, so log-probs differ in the last digits.
    for turn, same in zip(one, other, strict=True):
        assert (turn.agent_role, turn.prompt_ids, turn.action_ids) == (
            same.agent_role,
            same.prompt_ids,
            same.action_ids,
        )
        assert turn.behavior_logprobs == pytest.approx(same.behavior_logprobs, abs=1e-5)


def test_turns_are_in_the_order_of_their_starts_also_if_a_later_one_ends_first():
    sampler = SpyingSampler()

    async def solve(task, client):
        first = asyncio.create_task(ask(client, "long", "worker", max_tokens=7))
        await asyncio.to_thread(sampler.holds.wait)
        await ask(client, "short", "planner", max_tokens=2)
        sampler.submit(sampler.held.pop("e000/0"))
        await first
        return 1.0

    (trajectory,) = run(solve, 1, sampler=sampler, deterministic=False)
    assert [turn.agent_role for turn in trajectory.turns] == ["worker", "planner"]


def test_unknown_and_malformed_roles_are_refused():
    messages = []

    async def solve(task, client):
        for role in ("critic", "", "no role"):
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(client, "hi", role)
            messages.append(refused.value.body["message"])
        await ask(client, "hi", "worker")
        return 1.0

    (trajectory,) = run(solve, 1, agent_roles=("planner", "worker"))
    assert trajectory.failure is None
    assert messages == [
        "role 'critic': expected planner or worker",
        "role '': expected planner or worker",
        "role 'no role': expected up to 64 letters, digits, _ and -",
    ]


def test_parameters_move_only_with_the_turns_of_their_role():
    """A planner and a worker with an adapter each: an update on both, and on episodes of one of them."""
    lora = LoraSettings(rank=2, per_role=("planner", "worker"), seed=1)
    policy = load_policy("tiny", tiny=TINY)
    engine = LocalEngine(policy, OptimizerSettings(learning_rate=1e-2), lora=lora)
    sampler = make_sampler(policy)

    def collect(iteration, roles):
        async def solve(task, client):
            texts = [await ask(client, f"{role} {iteration}", role) for role in roles]
            return float(len("".join(texts)) % 7)

        sampler.sync(engine, iteration)
        return run(solve, 8, sampler=sampler, policy=policy, agent_roles=lora.per_role)

    def adapters():
        named = list(policy.model.named_parameters())
        return [
            torch.cat([p.detach().flatten().clone() for n, p in named if f".role_{role}." in n])
            for role in lora.per_role
        ]

    for iteration, roles in enumerate([["planner", "worker"], ["planner"], ["worker"], ["worker", "planner"]]):
        trajectories = collect(iteration, roles)
        assert {trajectory.failure for trajectory in trajectories} == {None}
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        for turn, row in zip(turns, engine.logprobs(turns), strict=True):
            assert list(turn.behavior_logprobs) == pytest.approx(row.tolist(), abs=1e-4)
        before = adapters()
        SeeUPO().update(engine, trajectories)
        moved = [not torch.equal(*pair) for pair in zip(before, adapters(), strict=True)]
        assert moved == [role in roles for role in lora.per_role]


# --- Calls that are given up ------------------------------------------------------------------------------------------


def test_a_call_without_a_client_is_cancelled_and_its_repetition_has_the_same_response():
    sampler = SpyingSampler()

    async def disconnects(task, client):
        lost = asyncio.create_task(ask(client, "hi", max_tokens=7))
        await asyncio.to_thread(sampler.holds.wait)
        lost.cancel()
        assert await asyncio.to_thread(sampler.cancelled.wait, 30)
        await ask(client, "hi", max_tokens=7)
        return 1.0

    async def stays(task, client):
        await ask(client, "hi", max_tokens=7)
        return 1.0

    (continued,) = run(disconnects, 1, sampler=sampler, deterministic=False)
    (expected,) = run(stays, 1)
    assert continued.failure is None
    assert [turn.action_ids for turn in continued.turns] == [turn.action_ids for turn in expected.turns]
    assert [request.id for request in sampler.requests] == ["e000/0", "e000/0"]


def test_calls_of_an_ended_episode_are_cancelled():
    sampler = SpyingSampler()
    found = []

    async def solve(task, client):
        if not sampler.requests:
            task = asyncio.create_task(ask(client, "hi", max_tokens=7))
            await asyncio.to_thread(sampler.holds.wait)
            found.append(task)
            return 1.0
        found.append(await asyncio.to_thread(sampler.cancelled.wait, 30))
        await ask(client, "hi")
        return 1.0

    trajectories = run(solve, 2, sampler=sampler, deterministic=False, concurrency=1)
    assert found[1] is True
    assert [len(trajectory.turns) for trajectory in trajectories] == [0, 1]


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_sampler_is_idle_after_an_exception(deterministic):
    class Interrupted(LocalSampler):
        polls = 0

        def poll(self):
            self.polls += 1
            if self.polls == 2:
                raise KeyboardInterrupt
            return super().poll()

    async def solve(task, client):
        await ask(client, "hi")
        return 1.0

    sampler = Interrupted(POLICY)
    with gateway(solve, sampler, deterministic=deterministic) as running:
        with pytest.raises(KeyboardInterrupt):
            list(running.run([Attempt("e", "g", TASK, seed=0)]))
        sampler.sync(LocalEngine(POLICY, OptimizerSettings()), 1)  # raises unless it is idle
        (trajectory,) = running.run([Attempt("e", "g", TASK, seed=0)])
        assert trajectory.failure is None
