"""Policies under evaluation: a model in this process, a scripted expert, a random policy, or a model server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from seeupo.callbacks import Callback
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EvaluationError, suggest
from seeupo.evaluation.endpoint import Endpoint
from seeupo.evaluation.results import AttemptResult
from seeupo.evaluation.scripted import TextPolicy, finished, run_rollouts, text_rollout
from seeupo.models.catalog import CATALOG
from seeupo.models.location import locate
from seeupo.protocols import Rollouts
from seeupo.rollout.reasoning import action_of
from seeupo.rollout.template import REMINDER, with_tools
from seeupo.types import Attempt, Message, StepResult, Tool

SCRIPTED = ("expert", "random")
"""Names of policies without a model."""


def check_policy(policy: str) -> None:
    """Raise if a policy that is not a run is not to be found, before an environment is started for it."""
    if policy in (*SCRIPTED, "tiny"):
        return
    if "/" not in policy and policy not in CATALOG and not Path(policy).exists():
        hint = suggest(policy, [*SCRIPTED, "tiny", *CATALOG])
        raise EvaluationError(
            f"{policy} does not exist; {hint} (or give a run directory, a model folder, or owner/name on a model hub)"
        )
    locate(policy)


class EvaluatedPolicy(Protocol):
    """Runs attempts, many at a time, and yields their results in any order."""

    def run(self, attempts: Sequence[Attempt]) -> Iterator[AttemptResult]: ...


@dataclass(frozen=True)
class ModelPolicy:
    """A model in this process, through the episode runner; `callback` observes its trajectories."""

    runner: Rollouts
    callback: Callback

    def run(self, attempts: Sequence[Attempt]) -> Iterator[AttemptResult]:
        by_id = {attempt.id: attempt for attempt in attempts}
        for trajectory in self.runner.run(attempts):
            self.callback.on_trajectory(trajectory)
            attempt = by_id[trajectory.id]
            yield AttemptResult(
                task=attempt.task.id,
                kind=attempt.task.kind,
                attempt=attempt.index,
                score=trajectory.score,
                stop=trajectory.stop.value,
                turns=len(trajectory.turns),
                prompt_tokens=sum(len(turn.prompt_ids) for turn in trajectory.turns),
                action_tokens=sum(len(turn.action_ids) for turn in trajectory.turns),
                truncated_responses=trajectory.truncated_responses,
                failure=None if trajectory.failure is None else trajectory.failure.message,
            )


@dataclass(frozen=True)
class TextPolicies:
    """A policy that acts in text, without tokens; `start` returns the text policy of one attempt."""

    pool: EnvPool
    start: Callable[[Attempt], TextPolicy]
    max_turns: int
    concurrency: int = 64

    def run(self, attempts: Sequence[Attempt]) -> Iterator[AttemptResult]:
        rollouts = (
            text_rollout(self.pool, attempt, self.start(attempt), max_turns=self.max_turns) for attempt in attempts
        )
        return run_rollouts(rollouts, concurrency=self.concurrency)


def expert_policy(pool: EnvPool, max_turns: int) -> TextPolicies:
    """Return the expert of the environment."""

    def start(attempt: Attempt) -> TextPolicy:
        expert = pool.expert(attempt.task)
        if expert is None:
            raise EvaluationError(f"{pool.name} has no expert for task {attempt.task.id}; choose another policy")
        return expert.submit

    return TextPolicies(pool, start, max_turns)


def random_policy(pool: EnvPool, max_turns: int) -> TextPolicies:
    """Return a policy that calls random tools with words it has seen, or writes such words if there are no tools."""
    return TextPolicies(pool, lambda attempt: RandomPolicy(random.Random(attempt.seed)), max_turns)


class RandomPolicy:
    """The random policy of one attempt."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator
        self.tools: tuple[Tool, ...] = ()
        self.words: list[str] = ["done"]

    def __call__(self, result: StepResult) -> Future[str]:
        self.tools = result.tools if result.tools is not None else self.tools
        self.words += [word for message in result.messages for word in message.content.split()]
        if self.tools:
            return finished(self._call())
        return finished(" ".join(self.generator.choices(self.words, k=self.generator.randint(1, 4))))

    def _call(self) -> str:
        tool = self.generator.choice(self.tools)
        names = tool.parameters.get("properties", {})
        call = {"name": tool.name, "arguments": {name: self.generator.choice(self.words) for name in names}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"


@contextmanager
def endpoint_policy(
    pool: EnvPool, endpoint: Endpoint, max_turns: int, *, reasoning: bool, concurrency: int
) -> Iterator[TextPolicies]:
    """Provide the model of a server, with threads for concurrent requests. The endpoint is closed at the end."""
    executor = ThreadPoolExecutor(concurrency, thread_name_prefix="endpoint")
    try:
        yield TextPolicies(
            pool,
            lambda attempt: EndpointConversation(endpoint, executor, attempt.seed, reasoning=reasoning),
            max_turns,
            concurrency=concurrency,
        )
    finally:
        endpoint.close()  # Python waits for all threads before it exits
        executor.shutdown(wait=False, cancel_futures=True)


class EndpointConversation:
    """The policy of one attempt at a model server: the conversation as messages, without thoughts."""

    def __init__(self, endpoint: Endpoint, executor: ThreadPoolExecutor, seed: int, *, reasoning: bool) -> None:
        self.endpoint = endpoint
        self.reasoning = reasoning
        self.executor = executor
        self.seed = seed
        self.messages: list[Message] = []
        self.tools: tuple[Tool, ...] = ()
        self.turn = 0

    def __call__(self, result: StepResult) -> Future[str]:
        self.tools = result.tools if result.tools is not None else self.tools
        # A tool message must name a call id, which text actions do not have: it is sent as a user message.
        self.messages += [replace(m, role="user") if m.role == "tool" else m for m in result.messages]
        self.turn += 1
        prompt = list(with_tools(self.messages, self.tools))
        if self.reasoning:
            prompt[-1] = replace(prompt[-1], content=f"{prompt[-1].content}\n{REMINDER}")
        return self.executor.submit(self._complete, prompt, self.seed + self.turn)

    def _complete(self, prompt: Sequence[Message], seed: int) -> str:
        text = self.endpoint.complete(prompt, seed=seed)
        self.messages.append(Message("assistant", action_of(text) if self.reasoning else text))
        return action_of(text)
