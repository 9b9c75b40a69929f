"""The episode runner: run many episodes concurrently, sampling while environments step."""

from __future__ import annotations

import hashlib
import queue
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from seeupo.envs.failures import EnvFailure
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
from seeupo.utils.text import counted

STUCK_SECONDS = 60.0
"""Time without an answer of any environment after which the episodes that wait for one are named."""
EpisodeSteps = Generator[Future[Any] | GenerationRequest, Any, Trajectory]
"""An episode as a coroutine: yields what it waits for, receives the result, and returns its trajectory."""


@dataclass(eq=False)
class RunningEpisode:
    """An episode that has not finished, and the time it has spent waiting."""

    attempt: Attempt
    steps: EpisodeSteps
    started: float
    waiting_since: float = 0.0
    waiting_for: Future[Any] | GenerationRequest | None = None
    sampling_seconds: float = 0.0
    environment_seconds: float = 0.0


class EnvResult(NamedTuple):
    """A finished call of an environment, with the time at which it finished."""

    running: RunningEpisode
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
        self.policy = policy
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
        self._requests: list[GenerationRequest] = []
        self._sampling = 0
        self._finished: list[Trajectory] = []

    def run(self, attempts: Iterable[Attempt]) -> Iterator[Trajectory]:
        """Yield trajectories as they finish. An infrastructure failure gives a failed trajectory without a score."""
        waiting = deque(attempts)
        self._reset()
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self.concurrency:
                    attempt = waiting.popleft()
                    running = RunningEpisode(attempt, self._episode(attempt), time.monotonic())
                    self._running[attempt.id] = running
                    self._continue(running, partial(next, running.steps))
                self._handle_results()
                self._sample()
                finished, self._finished = self._finished, []
                yield from finished
        finally:
            for running in self._running.values():
                running.steps.close()

    def _episode(self, attempt: Attempt) -> EpisodeSteps:
        """Run one episode to its official score, or to the failure that ends it."""
        started = time.monotonic()
        episode = self.pool.start(attempt.task, attempt.seed)
        turns: list[Turn] = []
        turn_texts: list[TurnText] = []
        opening = ""
        truncated_responses = 0
        score: float | None = None
        failure: Failure | None = None
        try:
            result: StepResult = yield episode.reset()
            opening = text_of(result)
            conversation = Conversation.start(self.chat, self.template, result)
            while (stop := self._stop_reason(result, len(turns), started)) is None:
                prompt = conversation.prompt_ids()
                if self._is_too_long(prompt):
                    stop = StopReason.CONTEXT_LIMIT
                    break
                completion: Completion = yield self._request(attempt, len(turns), prompt)
                turn = Turn(
                    trajectory=attempt.id,
                    index=len(turns),
                    prompt_ids=prompt,
                    action_ids=completion.ids,
                    behavior_logprobs=completion.logprobs,
                    policy_version=completion.version,
                    state_key=state_key_of(result),
                )
                text = self.chat.decode(completion.ids)
                turns.append(turn)
                turn_texts.append(TurnText(text))
                truncated_responses += completion.end is CompletionEnd.LENGTH
                result = yield episode.step(action_of(text))
                turns[-1] = replace(turn, reward=result.reward)
                turn_texts[-1] = TurnText(text, text_of(result))
                conversation.add(completion.ids, result)
            score = yield episode.score()
            if stop is StopReason.ENVIRONMENT and score == 1.0:
                stop = StopReason.GOAL
        except (EnvFailure, EnvError) as error:
            stop = StopReason.FAILURE
            failure = Failure(error.kind if isinstance(error, EnvFailure) else FailureKind.OTHER, str(error))
        finally:
            episode.close()
        return Trajectory(
            id=attempt.id,
            group=attempt.group,
            task=attempt.task.id,
            turns=tuple(turns),
            reward=0.0 if score is None else score,
            score=score,
            stop=stop,
            failure=failure,
            truncated_responses=truncated_responses,
            opening=opening,
            turn_texts=tuple(turn_texts),
        )

    def _stop_reason(self, result: StepResult, turns: int, started: float) -> StopReason | None:
        if result.terminated:
            return StopReason.ENVIRONMENT
        if result.truncated:
            return StopReason.FORCED
        if turns >= self.max_turns:
            return StopReason.TURN_LIMIT
        if self.episode_seconds is not None and time.monotonic() - started > self.episode_seconds:
            return StopReason.FORCED
        return None

    def _is_too_long(self, prompt: tuple[int, ...]) -> bool:
        limit = self.template.max_prompt_tokens
        exceeds_context = len(prompt) + self.parameters.max_tokens > self.context_length
        return exceeds_context or (limit is not None and len(prompt) > limit)

    def _request(self, attempt: Attempt, index: int, prompt: tuple[int, ...]) -> GenerationRequest:
        return GenerationRequest(
            id=attempt.id,
            prompt_ids=prompt,
            seed=derive_seed(attempt.seed, attempt.id, index, bits=63),
            parameters=self.parameters,
            episode=attempt.id,
            agent=index,
        )

    def _continue(self, running: RunningEpisode, step: Callable[[], Future[Any] | GenerationRequest]) -> None:
        """Take the next step of an episode, up to where it waits for its environment or the sampler, or ends."""
        try:
            pending = step()
        except StopIteration as end:
            del self._running[running.attempt.id]
            timings = {
                "seconds": time.monotonic() - running.started,
                "sampling_seconds": running.sampling_seconds,
                "environment_seconds": running.environment_seconds,
            }
            self._finished.append(replace(end.value, timings=timings))
            return
        running.waiting_since, running.waiting_for = time.monotonic(), pending
        if isinstance(pending, GenerationRequest):
            self._requests.append(pending)
        else:
            pending.add_done_callback(lambda done: self._results.put(EnvResult(running, done, time.monotonic())))

    def _handle_results(self) -> None:
        """Handle the results of environments. In lockstep, wait for all of them and handle them in a fixed order."""
        received: list[EnvResult] = []
        pending = len(self._running) - len(self._requests) - self._sampling
        while len(received) < pending:
            wait = self.deterministic or not (self._requests or self._sampling or received)
            try:
                received.append(self._results.get(block=wait, timeout=STUCK_SECONDS))
            except queue.Empty:
                if not wait:
                    break
                self._warn_of_stuck_episodes()
        if self.deterministic:
            received.sort(key=lambda result: result.running.attempt.id)
        for running, future, finished in received:
            running.environment_seconds += finished - running.waiting_since
            error = future.exception()
            if error is None:
                self._continue(running, partial(running.steps.send, future.result()))
            else:
                self._continue(running, partial(running.steps.throw, error))

    def _warn_of_stuck_episodes(self) -> None:
        """Name an episode that waits for its environment; the pool's time limit will end the call of a worker."""
        futures = ((running, running.waiting_for) for running in self._running.values())
        stuck = [running for running, future in futures if isinstance(future, Future) and not future.done()]
        if stuck:
            first, waited = stuck[0].attempt, time.monotonic() - stuck[0].waiting_since
            warnings.warn(
                f"{counted(len(stuck), 'episode')} waiting for the environment; the first, {first.id} of task "
                f"{first.task.id}, for {waited:.0f} s",
                stacklevel=2,
            )

    def _sample(self) -> None:
        """Submit the requests to the sampler and run it for one step, or in lockstep for a whole turn."""
        for request in self._requests:
            self.sampler.submit(request)
        self._sampling += len(self._requests)
        self._requests = []
        while self._sampling:
            for completion in self.sampler.poll():
                running = self._running[completion.id]
                running.sampling_seconds += time.monotonic() - running.waiting_since
                self._sampling -= 1
                self.work.update(completion.work)
                self._continue(running, partial(running.steps.send, completion))
            if not self.deterministic:
                break


def text_of(result: StepResult) -> str:
    """Return the messages of a result as one text."""
    return "\n".join(message.content for message in result.messages)


def state_key_of(result: StepResult) -> str:
    """Return the environment's name of its state, or a hash of the observation."""
    if result.state_key is not None:
        return result.state_key
    return hashlib.blake2b(text_of(result).encode(errors="surrogatepass"), digest_size=8).hexdigest()
