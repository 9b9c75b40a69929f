"""The episode runner: run many episodes concurrently, sampling while environments step."""

from __future__ import annotations

import hashlib
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.episode import Episode
from seeupo.envs.pool.pool import EnvPool
from seeupo.errors import EnvError
from seeupo.inference import make_sampler
from seeupo.models.loading import LoadedPolicy
from seeupo.protocols import Sampler
from seeupo.rollout.chat import chat_format
from seeupo.rollout.reasoning import action_of
from seeupo.rollout.template import Conversation, Template
from seeupo.types import (
    Attempt,
    Completion,
    CompletionEnd,
    Failure,
    FailureKind,
    GenerationRequest,
    SamplingParameters,
    StepResult,
    StopReason,
    Trajectory,
    Turn,
    TurnText,
)
from seeupo.utils.option_checks import check_at_least, check_count
from seeupo.utils.seeds import derive_seed


@dataclass(eq=False)
class RunningEpisode:
    """An episode that has not finished."""

    attempt: Attempt
    episode: Episode
    started: float
    conversation: Conversation | None = None
    turns: list[Turn] = field(default_factory=list)
    opening: str = ""
    turn_texts: list[TurnText] = field(default_factory=list)
    truncated_responses: int = 0
    stop: StopReason | None = None
    prompt: tuple[int, ...] = ()
    state_key: str = ""
    waiting_since: float = 0.0
    sampling_seconds: float = 0.0
    environment_seconds: float = 0.0


class EnvResult(NamedTuple):
    """A finished call of an environment, with the handler of its value and the time at which it finished."""

    running: RunningEpisode
    handler: Callable[[RunningEpisode, Any], None]
    future: Future[Any]
    finished: float


class Runner:
    """Runs attempts with a sampler and a pool of environments.

    Attributes:
        sampler: Samples the actions. Call `sampler.sync(engine, version)` after every change of the weights.
        work: What the sampler computed in the last run, summed over its completions.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        pool: EnvPool,
        sampler: Sampler | None = None,
        *,
        parameters: SamplingParameters | None = None,
        max_turns: int = 10,
        concurrency: int = 64,
        episode_seconds: float | None = None,
        reasoning: bool = False,
        max_observation_tokens: int = Template.max_observation_tokens,
        max_prompt_tokens: int | None = None,
        deterministic: bool = True,
        training: bool = True,
    ) -> None:
        """Make a runner of a loaded policy. If an engine trains the policy, make the engine first.

        Args:
            policy: Policy of `load_policy`.
            pool: Environments of the episodes.
            sampler: Samples the actions; by default in this process, with the model that the policy and engine share.
            parameters: Length and temperature of a response, and other sampling parameters.
            max_turns: T, the maximum number of turns in an episode, which is then scored in its current state.
            concurrency: Maximum number of concurrent episodes.
            episode_seconds: Wall-clock limit of an episode, which is then stopped and scored; None for no limit.
            reasoning: Ask for a thought before each action, which later prompts omit.
            max_observation_tokens: Maximum length of an observation; longer ones are truncated with a note.
            max_prompt_tokens: Maximum length of a prompt; the oldest observations of longer ones are replaced by notes.
            deterministic: Let all episodes advance in lockstep, so that the same seeds at the same concurrency give
                bit-identical trajectories regardless of the environments' timing. Otherwise log-probs may differ in
                the last digits, and occasionally a token.
            training: Refuse truncated sampling, whose log-probs are not those of the policy, in the default sampler.
        """
        check_count("max_turns", max_turns, 1)
        check_count("concurrency", concurrency, 1)
        if episode_seconds is not None:
            check_at_least("episode_seconds", episode_seconds, 0)
        self.pool = pool
        self.sampler = sampler or make_sampler(policy, training=training, max_rows=concurrency)
        self.chat = chat_format(policy.tokenizer)
        self.template = Template(
            reasoning=reasoning, max_observation_tokens=max_observation_tokens, max_prompt_tokens=max_prompt_tokens
        )
        self.parameters = parameters or SamplingParameters()
        self.max_turns = max_turns
        self.concurrency = concurrency
        self.episode_seconds = episode_seconds
        self.deterministic = deterministic
        self.context_length = policy.context_length
        self._reset()

    def _reset(self) -> None:
        self.work: Counter[str] = Counter()
        self._results: queue.SimpleQueue[EnvResult] = queue.SimpleQueue()
        self._running: dict[str, RunningEpisode] = {}
        self._to_sample: list[RunningEpisode] = []
        self._sampling: dict[str, RunningEpisode] = {}
        self._finished: list[Trajectory] = []

    def run(self, attempts: Iterable[Attempt]) -> Iterator[Trajectory]:
        """Yield trajectories as they finish. An infrastructure failure gives a failed trajectory without a score."""
        waiting = deque(attempts)
        self._reset()
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self.concurrency:
                    self._start(waiting.popleft())
                self._handle_results()
                self._sample()
                finished, self._finished = self._finished, []
                yield from finished
        finally:
            for running in self._running.values():
                running.episode.close()

    def _start(self, attempt: Attempt) -> None:
        running = RunningEpisode(attempt, self.pool.start(attempt.task, attempt.seed), time.monotonic())
        self._running[attempt.id] = running
        self._await(running, running.episode.reset(), self._on_reset)

    def _await(
        self, running: RunningEpisode, future: Future[Any], handler: Callable[[RunningEpisode, Any], None]
    ) -> None:
        """Have `_handle_results` pass the future's value to `handler` when the environment has returned it."""
        running.waiting_since = time.monotonic()
        future.add_done_callback(lambda done: self._results.put(EnvResult(running, handler, done, time.monotonic())))

    def _handle_results(self) -> None:
        """Handle the results of environments. In lockstep, wait for all of them and handle them in a fixed order."""
        received: list[EnvResult] = []
        pending = len(self._running) - len(self._to_sample) - len(self._sampling)
        while len(received) < pending:
            idle = not (self._to_sample or self._sampling or received)
            try:
                received.append(self._results.get(block=idle or self.deterministic))
            except queue.Empty:
                break
        if self.deterministic:
            received.sort(key=lambda result: result.running.attempt.id)
        for running, handler, future, finished in received:
            running.environment_seconds += finished - running.waiting_since
            try:
                value = future.result()
            except EnvFailure as failure:
                self._finish(running, StopReason.FAILURE, failure=Failure(failure.kind, str(failure)))
            except EnvError as error:
                self._finish(running, StopReason.FAILURE, failure=Failure(FailureKind.OTHER, str(error)))
            else:
                handler(running, value)

    def _on_reset(self, running: RunningEpisode, result: StepResult) -> None:
        running.conversation = Conversation.start(self.chat, self.template, result)
        running.opening = text_of(result)
        self._next_turn(running, result)

    def _next_turn(self, running: RunningEpisode, result: StepResult) -> None:
        """Queue the next turn for sampling, or stop the episode and request its score."""
        assert running.conversation is not None
        running.state_key = state_key_of(result)
        running.stop = self._stop_reason(running, result)
        if running.stop is None:
            running.prompt = running.conversation.prompt_ids()
            if len(running.prompt) + self.parameters.max_tokens > self.context_length or (
                self.template.max_prompt_tokens is not None and len(running.prompt) > self.template.max_prompt_tokens
            ):
                running.stop = StopReason.CONTEXT_LIMIT
        if running.stop is None:
            self._to_sample.append(running)
        else:
            self._await(running, running.episode.score(), self._on_score)

    def _stop_reason(self, running: RunningEpisode, result: StepResult) -> StopReason | None:
        if result.terminated:
            return StopReason.ENVIRONMENT
        if result.truncated:
            return StopReason.FORCED
        if len(running.turns) >= self.max_turns:
            return StopReason.TURN_LIMIT
        limit = self.episode_seconds
        if limit is not None and time.monotonic() - running.started > limit:
            return StopReason.FORCED
        return None

    def _sample(self) -> None:
        """Submit the queued turns to the sampler and run it for one step, or in lockstep for a whole turn."""
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
                    parameters=self.parameters,
                    episode=attempt.id,
                    agent=index,
                )
            )
        while self._sampling:
            for completion in self.sampler.poll():
                self._on_completion(self._sampling.pop(completion.id), completion)
            if not self.deterministic:
                break

    def _on_completion(self, running: RunningEpisode, completion: Completion) -> None:
        """Record the sampled tokens as a turn and send the action to the environment."""
        running.sampling_seconds += time.monotonic() - running.waiting_since
        self.work.update(completion.work)
        running.turns.append(
            Turn(
                trajectory=running.attempt.id,
                index=len(running.turns),
                prompt_ids=running.prompt,
                action_ids=completion.ids,
                behavior_logprobs=completion.logprobs,
                policy_version=completion.version,
                state_key=running.state_key,
            )
        )
        running.truncated_responses += completion.end is CompletionEnd.LENGTH
        text = self.chat.decode(completion.ids)
        running.turn_texts.append(TurnText(text))
        self._await(running, running.episode.step(action_of(text)), self._on_step)

    def _on_step(self, running: RunningEpisode, result: StepResult) -> None:
        assert running.conversation is not None
        running.turns[-1] = replace(running.turns[-1], reward=result.reward)
        running.turn_texts[-1] = replace(running.turn_texts[-1], observation=text_of(result))
        running.conversation.add(running.turns[-1].action_ids, result)
        self._next_turn(running, result)

    def _on_score(self, running: RunningEpisode, score: float) -> None:
        stop = running.stop or StopReason.ENVIRONMENT
        if stop is StopReason.ENVIRONMENT and score == 1.0:
            stop = StopReason.GOAL
        self._finish(running, stop, score=score)

    def _finish(
        self, running: RunningEpisode, stop: StopReason, *, score: float | None = None, failure: Failure | None = None
    ) -> None:
        """Finish an episode with its official score, or with the failure that ended it."""
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
                truncated_responses=running.truncated_responses,
                timings={
                    "seconds": time.monotonic() - running.started,
                    "sampling_seconds": running.sampling_seconds,
                    "environment_seconds": running.environment_seconds,
                },
                opening=running.opening,
                turn_texts=tuple(running.turn_texts),
            )
        )


def text_of(result: StepResult) -> str:
    """Return the messages of a result as one text."""
    return "\n".join(message.content for message in result.messages)


def state_key_of(result: StepResult) -> str:
    """Return the environment's name of its state, or a hash of the observation."""
    if result.state_key is not None:
        return result.state_key
    return hashlib.blake2b(text_of(result).encode(errors="surrogatepass"), digest_size=8).hexdigest()
