"""Who can be evaluated: a model of this process, an expert, somebody who acts at random, or a model behind a server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from seeupo.agents.runner import Attempt as RunnerAttempt
from seeupo.agents.runner import Runner
from seeupo.agents.template import Template, with_tools
from seeupo.agents.thoughts import action_of
from seeupo.envs.check import Choose, Game, drive, game
from seeupo.envs.pool import EnvPool
from seeupo.training.endpoint import Endpoint
from seeupo.training.evaluation import Attempt, Episode, EvaluationError
from seeupo.types import Message, StepResult, Task, Tool, Trajectory


@dataclass(frozen=True)
class PolicyPlayer:
    """A model of this process, through the episode runner. `heard` gets each trajectory."""

    runner: Runner
    heard: Callable[[Trajectory], None] = lambda trajectory: None

    def play(self, attempts: Sequence[Attempt]) -> Iterator[Episode]:
        by_id = {f"{attempt.task.id}#{attempt.sample}": attempt for attempt in attempts}
        runs = [RunnerAttempt(name, each.task.id, each.task, each.seed) for name, each in by_id.items()]
        for trajectory in self.runner.run(runs):
            self.heard(trajectory)
            attempt = by_id[trajectory.id]
            failed = trajectory.reward != trajectory.reward
            yield Episode(
                task=attempt.task.id,
                kind=attempt.task.kind,
                sample=attempt.sample,
                score=None if failed else trajectory.reward,
                stop=trajectory.stop.value,
                turns=len(trajectory.samples),
                prompt_tokens=sum(len(sample.prompt_ids) for sample in trajectory.samples),
                action_tokens=sum(len(sample.action_ids) for sample in trajectory.samples),
                cut_responses=int(trajectory.timings["cut_responses"]),
                failure=trajectory.texts[-1] if failed else None,
            )


@dataclass(frozen=True)
class ChoosingPlayer:
    """Somebody who chooses texts: `begin` gives the chooser of an attempt."""

    pool: EnvPool
    begin: Callable[[Attempt], Choose]
    max_turns: int
    in_flight: int = 64

    def play(self, attempts: Sequence[Attempt]) -> Iterator[Episode]:
        return drive((self._play_one(attempt) for attempt in attempts), in_flight=self.in_flight)

    def _play_one(self, attempt: Attempt) -> Game[Episode]:
        played = yield from game(self.pool, attempt.task, attempt.seed, self.begin(attempt), max_turns=self.max_turns)
        return Episode(
            task=played.task.id,
            kind=played.task.kind,
            sample=attempt.sample,
            score=played.score,
            stop=played.stop.value,
            turns=played.turns,
            failure=played.failure,
        )


def expert_player(pool: EnvPool, max_turns: int) -> ChoosingPlayer:
    """The environment's own expert."""

    def begin(attempt: Attempt) -> Choose:
        expert = pool.expert(attempt.task)
        if expert is None:
            raise EvaluationError(f"nobody knows how to solve task {attempt.task.id} of {pool.name}: it has no expert")
        return expert.submit

    return ChoosingPlayer(pool, begin, max_turns)


def random_player(pool: EnvPool, max_turns: int) -> ChoosingPlayer:
    """Calls any tool that is offered with words that it has seen, or says some of them where there are no tools."""
    return ChoosingPlayer(pool, lambda attempt: Chance(random.Random(attempt.seed)), max_turns)


class Chance:
    """The chooser of somebody who acts at random."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.tools: tuple[Tool, ...] = ()
        self.words: list[str] = ["done"]

    def __call__(self, result: StepResult) -> Future[str]:
        self.tools = result.tools if result.tools is not None else self.tools
        self.words += [word for message in result.messages for word in message.content.split()]
        said: Future[str] = Future()
        said.set_result(
            self._call() if self.tools else " ".join(self.draw.choices(self.words, k=self.draw.randint(1, 4)))
        )
        return said

    def _call(self) -> str:
        tool = self.draw.choice(self.tools)
        names = tool.parameters.get("properties", {})
        call = {"name": tool.name, "arguments": {name: self.draw.choice(self.words) for name in names}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"


def endpoint_player(
    pool: EnvPool, endpoint: Endpoint, template: Template, max_turns: int, *, concurrency: int
) -> tuple[ChoosingPlayer, ThreadPoolExecutor]:
    """A model behind a server; the executor makes its requests, and is to be shut down in the end."""
    executor = ThreadPoolExecutor(concurrency, thread_name_prefix="endpoint")

    def begin(attempt: Attempt) -> Choose:
        return ChatWith(endpoint, template, executor, attempt.seed)

    return ChoosingPlayer(pool, begin, max_turns, in_flight=concurrency), executor


class ChatWith:
    """The chooser of a model behind a server: the conversation as messages, thoughts left out as the template says."""

    def __init__(self, endpoint: Endpoint, template: Template, executor: ThreadPoolExecutor, seed: int) -> None:
        self.endpoint, self.template, self.executor, self.seed = endpoint, template, executor, seed
        self.messages: list[Message] = []
        self.tools: tuple[Tool, ...] = ()
        self.turn = 0

    def __call__(self, result: StepResult) -> Future[str]:
        self.tools = result.tools if result.tools is not None else self.tools
        # A tool's message belongs to a call by its number, which text has none of: it is shown as the user's.
        self.messages += [replace(m, role="user") if m.role == "tool" else m for m in result.messages]
        self.turn += 1
        shown = list(with_tools(self.messages, self.tools))
        if self.template.reasoning:
            shown[-1] = replace(shown[-1], content=f"{shown[-1].content}\n{self.template.reminder}")
        return self.executor.submit(self._ask, shown, self.seed + self.turn)

    def _ask(self, shown: Sequence[Message], seed: int) -> str:
        text = self.endpoint.complete(shown, seed=seed)
        kept = action_of(text) if self.template.reasoning else text
        self.messages.append(Message("assistant", kept))
        return action_of(text)


def tasks_of(pool: EnvPool, split: str, count: int | None) -> Sequence[Task]:
    """The first tasks of a split; none is an error."""
    chosen = pool.tasks(split)[:count]
    if not chosen:
        raise EvaluationError(f"split {split!r} of {pool.name} has no tasks")
    return chosen
