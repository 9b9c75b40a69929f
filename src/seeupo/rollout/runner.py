"""The episode runner: many concurrent episodes, sampling while environments step."""

from __future__ import annotations

import queue
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from seeupo.agents.chat import ChatFormat, chat_format
from seeupo.agents.reasoning import action_of
from seeupo.agents.template import Conversation, Template
from seeupo.core.checks import check_at_least, check_count
from seeupo.engines.samplers.padded import local_sampler
from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.episode import Episode
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError
from seeupo.models.loading import LoadedPolicy
from seeupo.types import (
    Attempt,
    Completion,
    CompletionEnd,
    Failure,
    FailureKind,
    GenerationRequest,
    Sampler,
    SamplingParameters,
    StepResult,
    StopReason,
    Trajectory,
    Turn,
    TurnText,
)
from seeupo.utils.seeds import derive_seed

PAUSE_SECONDS = 0.05
"""How long to wait for an environment when there is nothing to sample."""


@dataclass(frozen=True, kw_only=True)
class RunnerSettings:
    """How episodes are run.

    Attributes:
        parameters: how actions are sampled.
        max_turns: an episode with more is stopped and scored as it stands.
        concurrency: episodes under way at a time.
        episode_seconds: wall-clock limit of an episode, likewise; None for none.
        stuck_seconds: an episode that waits this long for its environment is named in a warning.
        deterministic: episodes take their turns together, so that the same seeds at the same concurrency give
            bit-identical trajectories whatever the environments' timing. Otherwise floating point may differ in the
            last digits, and with it, once in a while, a token.
    """

    parameters: SamplingParameters = field(default_factory=SamplingParameters)
    max_turns: int = 10
    concurrency: int = 64
    episode_seconds: float | None = None
    stuck_seconds: float = 60.0
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_count("max_turns", self.max_turns, 1)
        check_count("concurrency", self.concurrency, 1)
        if self.episode_seconds is not None:
            check_at_least("episode_seconds", self.episode_seconds, 0)
        check_at_least("stuck_seconds", self.stuck_seconds, 0)


@dataclass(eq=False)
class Running:
    """An episode under way."""

    attempt: Attempt
    episode: Episode
    started: float
    conversation: Conversation | None = None
    turns: list[Turn] = field(default_factory=list)
    opening: str = ""
    texts: list[TurnText] = field(default_factory=list)
    truncated: int = 0
    stop: StopReason | None = None
    prompt: tuple[int, ...] = ()
    waiting_since: float = 0.0
    named_stuck: bool = False
    sampling_seconds: float = 0.0
    environment_seconds: float = 0.0


Answer = tuple[Running, Callable[[Running, Any], None], Future[Any]]
"""Of an environment: to which episode, and what to do with it."""


class Runner:
    """Runs attempts with a sampler and a pool of environments.

    Attributes:
        sampling_seconds, idle_seconds: of the last run: spent in the sampler, and waiting with nothing to sample.
    """

    def __init__(
        self, sampler: Sampler, pool: EnvPool, chat: ChatFormat, template: Template, settings: RunnerSettings,
        *, context_length: int,
    ) -> None:  # fmt: skip
        self.sampler, self.pool, self.chat, self.template, self.settings = sampler, pool, chat, template, settings
        self.context_length = context_length
        self.sampling_seconds = self.idle_seconds = 0.0
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._running: dict[str, Running] = {}
        self._to_sample: list[Running] = []
        self._sampling: dict[str, Running] = {}
        self._finished: list[Trajectory] = []

    def run(self, attempts: Iterable[Attempt]) -> Iterator[Trajectory]:
        """Trajectories as they finish. An episode lost to the infrastructure comes back failed, never scored."""
        waiting = deque(attempts)
        self._answers = queue.SimpleQueue()
        self._running, self._to_sample, self._sampling, self._finished = {}, [], {}, []
        self.sampling_seconds = self.idle_seconds = 0.0
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self.settings.concurrency:
                    self._start(waiting.popleft())
                self._hear_environments()
                self._sample()
                self._watch()
                finished, self._finished = self._finished, []
                yield from finished
        finally:
            for running in self._running.values():
                running.episode.close()

    def _start(self, attempt: Attempt) -> None:
        running = Running(attempt, self.pool.start(attempt.task, attempt.seed), time.monotonic())
        self._running[attempt.id] = running
        self._ask(running, running.episode.reset(), self._begin)

    def _ask(self, running: Running, future: Future[Any], then: Callable[[Running, Any], None]) -> None:
        running.waiting_since, running.named_stuck = time.monotonic(), False
        future.add_done_callback(lambda done: self._answers.put((running, then, done)))

    def _hear_environments(self) -> None:
        """Take in what environments have answered. In lockstep, wait for all of them, and go on in a fixed order."""
        heard: list[Answer] = []
        while True:
            asked = len(self._running) - len(self._to_sample) - len(self._sampling) - len(heard)
            if asked == 0:
                break
            nothing_to_do = not (self._to_sample or self._sampling or heard)
            wait = nothing_to_do or (self.settings.deterministic and not self._sampling)
            started = time.monotonic()
            try:
                heard.append(self._answers.get(timeout=PAUSE_SECONDS) if wait else self._answers.get_nowait())
            except queue.Empty:
                if not (wait and self.settings.deterministic):
                    break
                self._watch()
            finally:
                self.idle_seconds += time.monotonic() - started
        if self.settings.deterministic:
            heard.sort(key=lambda answer: answer[0].attempt.id)
        for running, then, future in heard:
            running.environment_seconds += time.monotonic() - running.waiting_since
            try:
                answer = future.result()
            except EnvFailure as failure:
                self._end(running, StopReason.FAILURE, failure=failure.record())
            except EnvError as error:
                self._end(running, StopReason.FAILURE, failure=Failure(FailureKind.OTHER, str(error)))
            else:
                then(running, answer)

    def _begin(self, running: Running, result: StepResult) -> None:
        running.conversation = Conversation.begin(self.chat, self.template, result)
        running.opening = text_of(result)
        self._next_turn(running, result)

    def _next_turn(self, running: Running, result: StepResult) -> None:
        """Decide whether the episode goes on, and with which prompt."""
        assert running.conversation is not None
        running.stop = self._reason_to_stop(running, result)
        if running.stop is None:
            running.prompt = running.conversation.prompt_ids()
            if len(running.prompt) + self.settings.parameters.max_tokens > self.context_length or (
                self.template.max_prompt_tokens is not None and len(running.prompt) > self.template.max_prompt_tokens
            ):
                running.stop = StopReason.CONTEXT_LIMIT
        if running.stop is None:
            self._to_sample.append(running)
        else:
            self._ask(running, running.episode.score(), self._finish)

    def _reason_to_stop(self, running: Running, result: StepResult) -> StopReason | None:
        if result.terminated:
            return StopReason.ENVIRONMENT
        if result.truncated:
            return StopReason.FORCED
        if len(running.turns) >= self.settings.max_turns:
            return StopReason.TURN_LIMIT
        limit = self.settings.episode_seconds
        if limit is not None and time.monotonic() - running.started > limit:
            return StopReason.FORCED
        return None

    def _sample(self) -> None:
        """Hand over what is ready to the sampler, and let it work for a step, or in lockstep for a whole turn."""
        ready, self._to_sample = self._to_sample, []
        for running in ready:
            attempt, index = running.attempt, len(running.turns)
            self._sampling[attempt.id] = running
            running.waiting_since = time.monotonic()
            self.sampler.submit(
                GenerationRequest(
                    id=attempt.id,
                    prompt_ids=running.prompt,
                    seed=derive_seed(attempt.seed, attempt.id, index, bits=63),
                    parameters=self.settings.parameters,
                    episode=attempt.id,
                    agent=index,
                )
            )
        started = time.monotonic()
        while self._sampling:
            for completion in self.sampler.poll():
                self._act(self._sampling.pop(completion.id), completion)
            if not self.settings.deterministic:
                break
        self.sampling_seconds += time.monotonic() - started

    def _act(self, running: Running, completion: Completion) -> None:
        """Record what was sampled, exactly, and send the action to the environment."""
        running.sampling_seconds += time.monotonic() - running.waiting_since
        running.turns.append(
            Turn(
                trajectory=running.attempt.id,
                index=len(running.turns),
                prompt_ids=running.prompt,
                action_ids=completion.ids,
                behavior_logprobs=completion.logprobs,
                policy_version=completion.version,
            )
        )
        running.truncated += completion.end is CompletionEnd.LENGTH
        text = self.chat.decode(completion.ids)
        running.texts.append(TurnText(text))
        future = running.episode.step(action_of(text))
        self._ask(running, future, lambda running, result: self._heard(running, completion, result))

    def _heard(self, running: Running, completion: Completion, result: StepResult) -> None:
        assert running.conversation is not None
        running.texts[-1] = replace(running.texts[-1], observation=text_of(result))
        running.conversation.add(completion.ids, result)
        self._next_turn(running, result)

    def _finish(self, running: Running, score: float) -> None:
        stop = running.stop or StopReason.ENVIRONMENT
        if stop is StopReason.ENVIRONMENT and score == 1.0:
            stop = StopReason.GOAL
        self._end(running, stop, score=score)

    def _end(
        self, running: Running, stop: StopReason, *, score: float | None = None, failure: Failure | None = None
    ) -> None:
        """Finish an episode: with its official score, or with the failure that ended it."""
        running.episode.close()
        del self._running[running.attempt.id]
        attempt = running.attempt
        self._finished.append(
            Trajectory(
                id=attempt.id,
                group=attempt.group,
                task=attempt.task.id,
                turns=tuple(running.turns),
                reward=0.0 if score is None else score,
                score=score,
                stop=stop,
                failure=failure,
                truncated_responses=running.truncated,
                timings={
                    "seconds": time.monotonic() - running.started,
                    "sampling_seconds": running.sampling_seconds,
                    "environment_seconds": running.environment_seconds,
                },
                opening=running.opening,
                turn_texts=tuple(running.texts),
            )
        )

    def _watch(self) -> None:
        """Name an episode that waits too long for its environment; the pool's own limit will end the call."""
        now = time.monotonic()
        asked = (r for r in self._running.values() if r.attempt.id not in self._sampling and r not in self._to_sample)
        for running in asked:
            waited = now - running.waiting_since
            if waited > self.settings.stuck_seconds and not running.named_stuck:
                running.named_stuck = True
                warnings.warn(
                    f"episode {running.attempt.id} (task {running.attempt.task.id}, turn {len(running.turns)}) has "
                    f"been waiting for its environment for {waited:.0f} s",
                    stacklevel=2,
                )


def text_of(result: StepResult) -> str:
    return "\n".join(message.content for message in result.messages)


def make_runner(
    policy: LoadedPolicy,
    pool: EnvPool,
    template: Template,
    settings: RunnerSettings,
    *,
    training: bool,
    sampler: Sampler | None = None,
) -> Runner:
    """Return a runner of a loaded policy in an environment, with a local sampler unless another one is given."""
    sampler = sampler or local_sampler(policy, training=training, max_rows=settings.concurrency)
    chat = chat_format(policy.tokenizer)
    return Runner(sampler, pool, chat, template, settings, context_length=policy.context_length)
