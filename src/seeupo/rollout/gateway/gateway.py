"""The gateway: runs agent programs as episodes, and records each of their calls as a turn."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace

from seeupo.envs.tracebacks import explain_exception
from seeupo.errors import ModelError
from seeupo.models.loading import LoadedPolicy
from seeupo.protocols import Sampler
from seeupo.rollout.chat import chat_format
from seeupo.rollout.gateway import AgentProgram
from seeupo.rollout.gateway.calls import Answer, Call, Caller, CallError
from seeupo.rollout.gateway.episodes import (
    CallArrived,
    Episode,
    EpisodeEnded,
    Generation,
    ProgramEnded,
    state_key_of,
    trajectory_of,
)
from seeupo.rollout.gateway.programs import InProcessPrograms, score_and_rewards
from seeupo.rollout.gateway.responder import answer_of, check_distribution, counted
from seeupo.rollout.gateway.server import GatewayApp, listen, serving
from seeupo.rollout.gateway.transcript import Transcript
from seeupo.types import (
    Attempt,
    Completion,
    Failure,
    FailureKind,
    GenerationRequest,
    SamplingParameters,
    StopReason,
    Trajectory,
    Turn,
)
from seeupo.utils.numbers import finite_number
from seeupo.utils.option_checks import check_count
from seeupo.utils.seeds import derive_seed

MODEL = "policy"
MAX_IN_FLIGHT = 64
"""Maximum number of calls of an episode that wait for their answers."""


class Gateway:
    """Runs attempts as episodes of an agent program. It is used like the `Runner` of environments.

    Threads of the HTTP server only queue calls; the thread in `run` alone touches the sampler and the tokenizer. When
    `run` has ended, no key is valid and the sampler is idle.

    Attributes:
        work: What the sampler computed in the last run, summed over its completions.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        program: AgentProgram,
        sampler: Sampler,
        *,
        parameters: SamplingParameters | None = None,
        agent_roles: Collection[str] = (),
        max_turns: int = 10,
        concurrency: int = 64,
        episode_seconds: float | None = None,
        deterministic: bool = True,
    ) -> None:
        """Start the server.

        Args:
            policy: Policy of `load_policy`.
            program: Agent program: `solve(task, client)`.
            sampler: Samples the responses.
            parameters: Length and temperature of every response. A call may ask for fewer tokens, and for no other
                distribution.
            agent_roles: Roles that have an adapter (`model.lora.per_role`); calls of others are refused. Empty for any.
            max_turns: T, the maximum number of calls in an episode, which then ends with score 0.
            concurrency: Maximum number of concurrent episodes.
            episode_seconds: Wall-clock limit of an episode, which then fails; None for no limit.
            deterministic: Sample when every episode waits for an answer, in a fixed order, so that programs with one
                call at a time give bit-identical trajectories.
        """
        check_count("max_turns", max_turns, 1)
        check_count("concurrency", concurrency, 1)
        self.sampler = sampler
        self.parameters = parameters or SamplingParameters()
        self.agent_roles = agent_roles
        self.max_turns = max_turns
        self.concurrency = concurrency
        self.episode_seconds = episode_seconds
        self.deterministic = deterministic
        self.chat = chat_format(policy.tokenizer)
        self.context_length = policy.context_length
        self.work: Counter[str] = Counter()
        self._programs = InProcessPrograms(program)
        self._lock = threading.Lock()
        self._by_key: dict[bytes, Episode | None] = {}
        self._is_running = False
        self._events: queue.SimpleQueue[CallArrived | ProgramEnded] = queue.SimpleQueue()
        self._episodes: dict[str, Episode] = {}
        self._arrived: list[CallArrived] = []
        self._sampled: dict[str, CallArrived] = {}
        self._finished: list[Trajectory] = []
        self._resources = contextlib.ExitStack()
        listener = self._resources.enter_context(contextlib.closing(listen(0)))
        self._address = self._resources.enter_context(serving(GatewayApp(self, MODEL), listener))

    def close(self) -> None:
        """Stop the server and the programs."""
        self._resources.close()
        self._programs.close()

    # Called by threads of the server.

    def check(self, caller: Caller) -> None:
        """Raise CallError if no episode has the caller's key."""
        self._episode_of(caller)

    def submit(self, call: Call, caller: Caller, *, count_only: bool = False) -> Future[Answer]:
        """Queue a call of an episode; a repeated request waits for the answer to the first."""
        answer: Future[Answer] = Future()
        with self._lock:
            episode = self._episode_of(caller)
            if not count_only and (earlier := episode.repeated(caller)) is not None:
                earlier.waiting.append(answer)
                if earlier.answer is not None:
                    earlier.deliver()
                elif earlier.cancelled:
                    earlier.cancelled = False
                    episode.unanswered += 1
                    self._events.put(CallArrived(episode, earlier))
                return answer
            if episode.unanswered >= MAX_IN_FLIGHT:
                raise CallError(429, f"{episode.unanswered} calls of this episode wait for their answers")
            generation = Generation(call, caller, len(episode.generations), [answer])
            if not count_only:
                episode.overlapped |= episode.unanswered > 0 and any(other.is_awaited for other in episode.generations)
                episode.generations.append(generation)
            episode.unanswered += 1
        self._events.put(CallArrived(episode, generation, count_only))
        return answer

    def lose(self, answer: Future[Answer], caller: Caller) -> None:
        with self._lock:
            episode = self._by_key.get(_hashed(caller.key))
            for generation in episode.generations if episode is not None else ():
                if answer in generation.waiting:
                    generation.lose(answer)

    def _episode_of(self, caller: Caller) -> Episode:
        if not self._is_running:
            raise CallError(503, "no episode is running now")
        try:
            episode = self._by_key[_hashed(caller.key)]
        except KeyError:
            raise CallError(401, "the API key is missing or wrong") from None
        if episode is None:
            raise CallError(409, "the episode of this key has ended")
        if self.agent_roles and caller.agent_role not in self.agent_roles:
            raise CallError(400, f"role {caller.agent_role!r}: expected {' or '.join(self.agent_roles)}")
        return episode

    # Called by the thread of `run`.

    def run(self, attempts: Iterable[Attempt]) -> Iterator[Trajectory]:
        """Yield trajectories as they finish. A program that fails gives a failed trajectory without a score."""
        waiting = deque(attempts)
        self.work = Counter()
        self._events = queue.SimpleQueue()
        self._is_running = True
        try:
            while waiting or self._episodes:
                while waiting and len(self._episodes) < self.concurrency:
                    self._start(waiting.popleft())
                self._handle_events()
                self._submit_arrived()
                self._sample()
                finished, self._finished = self._finished, []
                yield from finished
        finally:
            self._is_running = False
            self.sampler.cancel(self._sampled)
            self._sampled.clear()
            for episode in list(self._episodes.values()):
                self._end(episode, StopReason.FORCED, failure=Failure(FailureKind.OTHER, "the run was interrupted"))
            self._finished = []
            self._arrived = []
            with self._lock:
                self._by_key.clear()

    def _start(self, attempt: Attempt) -> None:
        key = secrets.token_hex(16)
        episode = Episode(attempt, Transcript(self.chat), time.monotonic())
        with self._lock:
            self._by_key[_hashed(key)] = episode
        self._episodes[attempt.id] = episode
        events = self._events

        def on_end(result: object, error: BaseException | None) -> None:
            events.put(ProgramEnded(episode, result, error))

        episode.program = self._programs.start(attempt.task, self._address, key, on_end)

    def _handle_events(self) -> None:
        """Handle what has arrived. In lockstep, wait until every episode waits for an answer or has ended."""
        while True:
            busy = [episode for episode in self._episodes.values() if not episode.unanswered]
            wait = bool(busy) if self.deterministic else not (self._arrived or self._sampled)
            if not self._episodes:
                return
            try:
                event = self._events.get(block=wait, timeout=self._seconds_left())
            except queue.Empty:
                self._end_late_episodes()
                if not wait:
                    return
                continue
            if self._episodes.get(event.episode.attempt.id) is not event.episode:
                continue  # it has ended
            if isinstance(event, ProgramEnded):
                self._finish(event)
            else:
                self._arrived.append(event)

    def _seconds_left(self) -> float | None:
        if self.episode_seconds is None:
            return None
        first = min((episode.started for episode in self._episodes.values()), default=time.monotonic())
        return max(0.0, first + self.episode_seconds - time.monotonic())

    def _end_late_episodes(self) -> None:
        for episode in list(self._episodes.values()):
            if self.episode_seconds is not None and time.monotonic() - episode.started >= self.episode_seconds:
                problem = f"the agent program did not end in {self.episode_seconds:g} s"
                self._end(episode, StopReason.FAILURE, failure=Failure(FailureKind.TIMED_OUT, problem))

    def _submit_arrived(self) -> None:
        """Begin to sample the responses to the calls that have arrived, in a fixed order."""
        arrived, self._arrived = self._arrived, []
        arrived.sort(key=CallArrived.position)
        for event in arrived:
            if self._episodes.get(event.episode.attempt.id) is not event.episode:
                continue
            try:
                request = self._request(event)
            except EpisodeEnded as end:
                self._end(event.episode, end.stop, score=0.0, message=end.message)
            except (CallError, ModelError) as error:
                problem = error if isinstance(error, CallError) else CallError(400, str(error))
                self._refuse(event, problem)
            else:
                if request is not None:
                    self.sampler.submit(request)
                    self._sampled[request.id] = event

    def _sample(self) -> None:
        """Continue sampling and answer calls: in lockstep all of them, otherwise those that one step finishes."""
        answers = []
        if not self.deterministic:
            self._cancel_lost()
        while self._sampled:
            for completion in self.sampler.poll():
                event = self._sampled.pop(completion.id)
                self.work.update(completion.work)
                event.episode.sampling_seconds += time.monotonic() - event.generation.started
                answers.append((event, completion))
            if not self.deterministic:
                break
        for event, completion in answers:
            self._answer(event, completion)

    def _cancel_lost(self) -> None:
        """Cancel the calls of ended episodes, and calls without a client, which are sampled again if they come back."""
        with self._lock:
            lost = [
                name
                for name, event in self._sampled.items()
                if event.generation.is_lost or self._episodes.get(event.episode.attempt.id) is not event.episode
            ]
            for name in lost:
                event = self._sampled.pop(name)
                event.generation.cancelled = True
                event.episode.unanswered -= 1
        self.sampler.cancel(lost)

    def _request(self, event: CallArrived) -> GenerationRequest | None:
        """Return the request of a call; None if only the tokens of its prompt were counted."""
        episode, generation = event.episode, event.generation
        if generation.request is not None:
            return generation.request  # it was cancelled: the same prompt and seed give the same response
        call, attempt = generation.call, episode.attempt
        check_distribution(call, self.parameters)
        role = generation.caller.agent_role
        index, in_role = episode.indices_of(generation)
        if index >= self.max_turns and not event.count_only:
            raise EpisodeEnded(StopReason.TURN_LIMIT, f"the episode has reached its limit of {self.max_turns} calls")
        prompt = episode.transcript.prompt_ids(call.messages, call.tools)
        if event.count_only:
            with self._lock:
                episode.unanswered -= 1
            generation.answer = counted(prompt, MODEL)
            generation.deliver()
            return None
        limit = min(self.parameters.max_tokens, call.max_tokens or self.parameters.max_tokens)
        if len(prompt) + limit > self.context_length:
            raise EpisodeEnded(
                StopReason.CONTEXT_LIMIT,
                f"the prompt has {len(prompt)} tokens and the response up to {limit}; the context of the model has "
                f"{self.context_length}",
            )
        generation.request = GenerationRequest(
            id=f"{attempt.id}/{generation.number}",
            prompt_ids=prompt,
            seed=derive_seed(attempt.seed, attempt.id, *([role] if role else []), in_role, bits=63),
            parameters=replace(self.parameters, max_tokens=limit, stop=call.stop),
            episode=f"{attempt.id}/{role}" if role else attempt.id,
            agent=index,
            agent_role=role,
        )
        return generation.request

    def _answer(self, event: CallArrived, completion: Completion) -> None:
        """Record a turn and hand its answer over."""
        episode, generation, request = event.episode, event.generation, event.generation.request
        assert request is not None
        answer = answer_of(episode.transcript, generation.call, request, completion, model=MODEL)
        # Programs may write ids into prompts, so these are the same in each attempt.
        answer = replace(answer, id=str(generation.number))
        generation.turn = Turn(
            trajectory=episode.attempt.id,
            index=generation.number,
            prompt_ids=request.prompt_ids,
            action_ids=completion.ids,
            behavior_logprobs=completion.logprobs,
            policy_version=completion.version,
            state_key=state_key_of(generation.call),
            agent_role=request.agent_role,
        )
        with self._lock:
            episode.unanswered -= 1
            generation.answer = answer
            generation.deliver()

    def _refuse(self, event: CallArrived, error: CallError) -> None:
        with self._lock:
            event.episode.unanswered -= 1
            event.generation.refused = True
            event.generation.fail(error)

    def _finish(self, event: ProgramEnded) -> None:
        """End the episode of a program that has ended, with the score that it returned."""
        episode = event.episode
        if event.error is not None:
            problem = explain_exception(event.error)
            self._end(episode, StopReason.FAILURE, failure=Failure(FailureKind.RAISED, f"the agent program: {problem}"))
            return
        score, rewards = score_and_rewards(event.result)
        value = finite_number(score)
        if value is None or any(finite_number(reward) is None for reward in rewards):
            problem = f"the agent program returned {event.result!r:.200}; expected its score, a number"
            self._end(episode, StopReason.FAILURE, failure=Failure(FailureKind.OTHER, problem))
            return
        stop = StopReason.GOAL if value == 1.0 else StopReason.ENVIRONMENT
        self._end(episode, stop, score=value, rewards=tuple(map(float, rewards)))  # type: ignore[arg-type]

    def _end(
        self,
        episode: Episode,
        stop: StopReason,
        *,
        score: float | None = None,
        rewards: tuple[float, ...] = (),
        failure: Failure | None = None,
        message: str = "the episode has ended",
    ) -> None:
        """End an episode: its key is no longer valid, its calls without an answer are refused."""
        with self._lock:
            for key, other in self._by_key.items():
                if other is episode:
                    self._by_key[key] = None
            for generation in episode.generations:
                generation.fail(CallError(409, message))
        del self._episodes[episode.attempt.id]
        if episode.program is not None:
            episode.program.cancel()
        self._finished.append(trajectory_of(episode, stop, score=score, rewards=rewards, failure=failure))


def _hashed(key: str) -> bytes:
    """Return the hash by which a key is looked up, in a time that says nothing about other keys."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
