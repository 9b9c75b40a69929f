"""Measure the gateway: its calls per second, and its overhead against the runner of environments.

1. Calls per second with a sampler that answers at once, for programs on the openai client (one at a time, and many).
2. Seconds to collect the same episodes of pocket by the runner and through the gateway, with the tiny model and, if
   `seeupo models fetch smollm2-135m` has been run, with SmolLM2-135M.

    .venv/bin/python benchmarks/gateway_speed.py --repeats 3
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from seeupo.config.model_settings import TinyConfig
from seeupo.envs.pocket import PocketFactory
from seeupo.envs.pool.pool import EnvPool
from seeupo.inference import make_sampler
from seeupo.models.catalog import downloaded_folder
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.rollout.gateway.gateway import Gateway
from seeupo.rollout.groups import group_attempts
from seeupo.rollout.runner import Runner
from seeupo.types import (
    Attempt,
    Completion,
    CompletionEnd,
    GenerationRequest,
    SamplingParameters,
    Task,
    Trajectory,
)

CALLS, TURNS, GROUP = 1024, 5, 8
POCKET = PocketFactory()


class Immediate:
    """A sampler that answers every request at once with the same text."""

    def __init__(self, policy: LoadedPolicy) -> None:
        self.ids = (*policy.tokenizer.encode("the answer", add_special_tokens=False), policy.tokenizer.eos_token_id)
        self.waiting: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> None:
        self.waiting.append(request)

    def poll(self) -> list[Completion]:
        waiting, self.waiting = self.waiting, []
        logprobs = (-1.0,) * len(self.ids)
        return [
            Completion(id=request.id, ids=self.ids, logprobs=logprobs, end=CompletionEnd.END_OF_TURN, version=0)
            for request in waiting
        ]


async def ask_often(task: Task, client: Any) -> float:
    for number in range(task.payload["calls"]):
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": f"call {number}"}])
    return 1.0


async def solve_pocket(task: Task, client: Any) -> float:
    """What a program for the environment would be."""
    env = POCKET.make()
    result = env.reset(task, seed=0)
    history = []
    for _ in range(TURNS):
        history += [{"role": message.role, "content": message.content} for message in result.messages]
        completion = await client.chat.completions.create(model="policy", messages=history)
        answer = completion.choices[0].message.content
        history.append({"role": "assistant", "content": answer})
        result = env.step(answer)
        if result.done:
            break
    return env.score()


def calls_per_second(policy: LoadedPolicy, programs: int) -> float:
    """Return the calls per second of some programs at a time."""
    calls = CALLS // programs
    attempts = [Attempt(f"e{n}", "g", Task("a", "train", payload={"calls": calls}), seed=n) for n in range(programs)]
    sampler: Any = Immediate(policy)
    settings = {"max_turns": calls, "concurrency": programs}
    with contextlib.closing(Gateway(policy, ask_often, sampler, **settings)) as gateway:
        seconds, trajectories = timed(lambda: gateway.run(attempts))
    assert sum(len(trajectory.turns) for trajectory in trajectories) == calls * programs
    return calls * programs / seconds


def timed(run: Callable[[], Iterable[Trajectory]]) -> tuple[float, list[Trajectory]]:
    started = time.perf_counter()
    trajectories = list(run())
    return time.perf_counter() - started, trajectories


def collected(policy: LoadedPolicy, *, tasks: int, max_tokens: int, repeats: int) -> tuple[float, float]:
    """Return the seconds of the runner and of the gateway for the same episodes, the best of some repeats."""
    parameters = SamplingParameters(max_tokens=max_tokens)
    best = [float("inf")] * 2
    with EnvPool(POCKET) as pool:
        attempts = group_attempts(pool.first_tasks("train", tasks), GROUP, seed=5)
        settings: dict[str, Any] = {"parameters": parameters, "max_turns": TURNS, "concurrency": 64}
        runner = Runner(policy, pool, make_sampler(policy), **settings)
        with contextlib.closing(Gateway(policy, solve_pocket, make_sampler(policy), **settings)) as gateway:
            for _ in range(repeats):
                tokens = []
                for number, rollouts in enumerate((runner, gateway)):
                    seconds, trajectories = timed(lambda rollouts=rollouts: rollouts.run(attempts))  # type: ignore[misc]
                    best[number] = min(best[number], seconds)
                    assert not any(trajectory.failure for trajectory in trajectories)
                    tokens.append({turn.key: turn.action_ids for t in trajectories for turn in t.turns})
                assert tokens[0] == tokens[1]
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="Number of measurements, of which the best counts.")
    parser.add_argument("--threads", type=int, default=2, help="Number of threads of PyTorch.")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tiny = load_policy("tiny", tiny=TinyConfig(context=2048))
    for programs in (1, 8, 64):
        speed = max(calls_per_second(tiny, programs) for _ in range(arguments.repeats))
        print(f"{programs} programs at a time: {speed:.0f} calls/s")
    policies = {"tiny": (tiny, 32, 16)}
    if (folder := downloaded_folder("smollm2-135m")) is not None:
        policies["smollm2-135m"] = (load_policy(str(folder)), 2, 16)
    for name, (policy, tasks, max_tokens) in policies.items():
        runner, gateway = collected(policy, tasks=tasks, max_tokens=max_tokens, repeats=arguments.repeats)
        print(f"{name}: runner {runner:.2f} s, gateway {gateway:.2f} s, {gateway / runner:.2f} times as long")


if __name__ == "__main__":
    main()
