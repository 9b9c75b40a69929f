"""An episode of an agent program: its calls, and the trajectory that they become."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from seeupo.rollout.gateway.calls import Answer, Call, Caller, CallError
from seeupo.rollout.gateway.programs import RunningProgram
from seeupo.rollout.gateway.transcript import Transcript
from seeupo.types import Attempt, CompletionEnd, Failure, GenerationRequest, StopReason, Trajectory, Turn, TurnText


@dataclass(eq=False)
class Generation:
    """A call, and the requests that wait for its answer: the first, and repetitions after a disconnect.

    Attributes:
        number: Position of the call in its episode, by the start of its first request.
        request: What the sampler was asked for.
        cancelled: Whether sampling was given up because all clients had gone; a repetition continues it.
        deliveries: Number of clients that have received the answer. Only delivered answers are turns.
    """

    call: Call
    caller: Caller
    number: int
    waiting: list[Future[Answer]]
    request: GenerationRequest | None = None
    cancelled: bool = False
    answer: Answer | None = None
    turn: Turn | None = None
    deliveries: int = 0
    refused: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def is_lost(self) -> bool:
        """Whether all clients that asked for the answer went away before they had it."""
        return not self.deliveries and not self.is_awaited

    @property
    def is_awaited(self) -> bool:
        """Whether a client waits for the answer."""
        return not all(answer.done() for answer in self.waiting)

    def deliver(self) -> None:
        """Give the answer to the requests that still wait for it."""
        assert self.answer is not None
        for waiting in self.waiting:
            if not waiting.done() and waiting.set_running_or_notify_cancel():
                waiting.set_result(self.answer)
                self.deliveries += 1

    def lose(self, answer: Future[Answer]) -> None:
        """Take back one of the answers: its client went away before it had all of it."""
        if not answer.cancel() and answer.exception() is None:
            self.deliveries -= 1

    def fail(self, error: CallError) -> None:
        """Refuse the requests that still wait for the answer."""
        for waiting in self.waiting:
            if not waiting.done() and waiting.set_running_or_notify_cancel():
                waiting.set_exception(error)


@dataclass(eq=False)
class Episode:
    """An episode of an agent program.

    Attributes:
        unanswered: Calls that have arrived and have no answer.
        overlapped: Whether calls were in flight at the same time.
    """

    attempt: Attempt
    transcript: Transcript
    started: float
    program: RunningProgram | None = None
    generations: list[Generation] = field(default_factory=list)
    unanswered: int = 0
    overlapped: bool = False
    sampling_seconds: float = 0.0

    def repeated(self, caller: Caller) -> Generation | None:
        """Return the call that a request repeats: one whose clients went away, or for a retry, one in flight."""
        same = [
            generation
            for generation in self.generations
            if generation.caller.digest == caller.digest and not (generation.deliveries or generation.refused)
        ]
        lost = [generation for generation in same if generation.is_lost]
        return next(iter(lost or (same if caller.retry else ())), None)

    def indices_of(self, generation: Generation) -> tuple[int, int]:
        """Return the position of a call among those that become turns, and among those of its role."""
        before = [other for other in self.generations[: generation.number] if not (other.refused or other.is_lost)]
        return len(before), sum(other.caller.agent_role == generation.caller.agent_role for other in before)


@dataclass(frozen=True)
class CallArrived:
    """A call has arrived; `count_only` asks for the number of its prompt's tokens."""

    episode: Episode
    generation: Generation
    count_only: bool = False

    def position(self) -> tuple[str, str, int]:
        """Return the position in the order of sampling, which does not depend on when another role calls."""
        return self.episode.attempt.id, self.generation.caller.agent_role, self.generation.number


@dataclass(frozen=True)
class ProgramEnded:
    """A program has returned a result or raised an exception."""

    episode: Episode
    result: object
    error: BaseException | None


class EpisodeEnded(Exception):
    """The policy has reached a limit, so the episode ends."""

    def __init__(self, stop: StopReason, message: str) -> None:
        super().__init__(message)
        self.stop = stop
        self.message = message


def trajectory_of(
    episode: Episode, stop: StopReason, *, score: float | None, rewards: tuple[float, ...], failure: Failure | None
) -> Trajectory:
    """Return the delivered turns of an episode in the order in which their requests started."""
    attempt = episode.attempt
    delivered = [generation for generation in episode.generations if generation.deliveries]
    turns = []
    for index, generation in enumerate(delivered):
        assert generation.turn is not None
        reward = rewards[index] if index < len(rewards) else 0.0
        turns.append(replace(generation.turn, index=index, reward=reward))
    observations = [observation_of(generation.call) for generation in delivered[1:]]
    answers = [generation.answer for generation in delivered if generation.answer is not None]
    seconds = time.monotonic() - episode.started
    return Trajectory(
        id=attempt.id,
        group=attempt.group,
        task=attempt.task.id,
        turns=tuple(turns),
        reward=0.0 if score is None else score,
        score=score,
        stop=stop,
        failure=failure,
        truncated_responses=sum(answer.end is CompletionEnd.LENGTH for answer in answers),
        timings={
            "seconds": seconds,
            "sampling_seconds": episode.sampling_seconds,
            "environment_seconds": max(0.0, seconds - episode.sampling_seconds),
        },
        opening="" if not delivered else observation_of(delivered[0].call),
        turn_texts=tuple(
            TurnText(episode.transcript.chat.decode(turn.action_ids), observation)
            for turn, observation in zip(turns, [*observations, ""], strict=False)
        ),
    )


def observation_of(call: Call) -> str:
    """Return the text of the messages after the last response."""
    responses = [number for number, message in enumerate(call.messages) if message.role == "assistant"]
    first = responses[-1] + 1 if responses else 0
    return "\n".join(message.content for message in call.messages[first:])


def state_key_of(call: Call) -> str:
    return hashlib.blake2b(observation_of(call).encode(errors="surrogatepass"), digest_size=8).hexdigest()
