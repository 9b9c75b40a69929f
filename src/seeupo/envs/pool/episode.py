"""Episodes: the queue for places in slots, and the handles that a pool returns."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from seeupo.envs.failures import EnvFailure, FailureCause, WorkerFailure
from seeupo.envs.pool.slot import Session, Slot
from seeupo.envs.pool.wire import to_json
from seeupo.errors import EnvError
from seeupo.types import Message, StepResult, Task

T = TypeVar("T")
CAUSE_MESSAGES = {
    FailureCause.TIMEOUT: "it took longer than the time limit",
    FailureCause.MEMORY: "it needed more memory than there is",
    FailureCause.RECURSION: "it was nested too deeply",
    FailureCause.STOPPED: "it stopped the environment's process",
    FailureCause.CRASH: "it made the environment's process end",
}


class Scheduler:
    """Assigns each episode to the least busy slot that has room, in order of arrival.

    Args:
        slots: The slots, to which others may be added.
        room: Number of concurrent episodes per slot; None for no limit.
    """

    def __init__(self, slots: Sequence[Slot], room: int | None) -> None:
        self.slots = list(slots)
        self.room = room
        self.lock = threading.Lock()
        self._queue: deque[Episode] = deque()
        self._refusal: EnvFailure | None = None

    def add_slots(self, slots: Sequence[Slot]) -> None:
        """Use more slots."""
        with self.lock:
            self.slots += slots
            self._fill_slots()

    def enqueue(self, episode: Episode) -> None:
        """Queue an episode for a slot."""
        with self.lock:
            self._queue.append(episode)
            self._fill_slots()

    def submit(self, episode: Episode, call: Callable[[Slot], T]) -> Future[T]:
        """Make a call in the episode's slot as soon as there is one."""
        future: Future[T] = Future()
        with self.lock:
            slot, refusal = episode.slot, self._refusal
            if slot is None and refusal is None:
                episode.waiting.append((call, future))
        # Outside the lock, because a future's callbacks may make the next call.
        if slot is not None:
            slot.submit(call, future)
        elif refusal is not None:
            future.set_exception(refusal)
        return future

    def release(self, episode: Episode) -> None:
        """Make room for the next episode in the queue; idempotent."""
        with self.lock:
            if episode.slot is not None:
                episode.slot.episodes.discard(episode)
                self._fill_slots()

    def close(self, refusal: EnvFailure) -> None:
        """Stop assigning slots; calls that wait for one fail."""
        with self.lock:
            self._refusal = refusal
            waiting = [future for episode in self._queue for _, future in episode.waiting]
            self._queue.clear()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(refusal)

    def _fill_slots(self) -> None:
        while self._queue:
            free = [slot for slot in self.slots if self.room is None or len(slot.episodes) < self.room]
            if not free:
                return
            episode = self._queue.popleft()
            episode.slot = least_busy(free)
            episode.slot.episodes.add(episode)
            for call, future in episode.waiting:
                episode.slot.submit(call, future)
            episode.waiting.clear()


def least_busy(slots: Sequence[Slot]) -> Slot:
    """Return the slot with the fewest sessions; among several, one that already has a worker."""
    return min(slots, key=lambda slot: (len(slot.episodes) + slot.experts, slot.thread is None))


class Episode:
    """One attempt at one task, in a slot of the pool.

    Calls run one after the other, in the order in which they were made. Callbacks of a future run in the slot's thread
    and should be short. Every infrastructure failure is an `EnvFailure`; all later calls fail with the same one.

    Attributes:
        slot: Slot of the episode; None while it waits for one.
        waiting: Calls that wait for the slot, with their futures.
    """

    def __init__(self, session: Session, task: Task, seed: int, scheduler: Scheduler, judge: Slot | None) -> None:
        """Create the episode. `judge` is the slot that computes the score, if not the episode's own."""
        self.task = task
        self.seed = seed
        self.slot: Slot | None = None
        self.waiting: list[tuple[Callable[[Slot], Any], Future[Any]]] = []
        self._scheduler = scheduler
        self._judge = judge
        self._session = session
        self._over = False
        self._closed = False
        self._failure: EnvFailure | None = None
        scheduler.enqueue(self)

    def reset(self) -> Future[StepResult]:
        """Set up the task. Must be the first call."""
        return self._submit(self._reset)

    def step(self, text: str) -> Future[StepResult]:
        """Take an action. If it breaks two workers, the episode ends with info["ended_by"] == "action"."""
        return self._submit(partial(self._step, text=text))

    def score(self) -> Future[float]:
        """Return the official score; after an action that broke its worker, that of the state before it."""
        return self._submit(self._score)

    def close(self) -> Future[None]:
        """Release the episode's slot for the next one; idempotent."""
        self._closed = True
        return self._scheduler.submit(self, self._close)

    def _submit(self, call: Callable[[Slot], T]) -> Future[T]:
        if self._closed:
            refused: Future[T] = Future()
            refused.set_exception(EnvError(f"the episode of task {self.task.id} is closed; start another one"))
            return refused
        return self._scheduler.submit(self, partial(self._call, call))

    def _call(self, call: Callable[[Slot], T], slot: Slot) -> T:
        """Run a call in the slot's thread. A failure releases the slot and is the result of all later calls."""
        if self._failure is not None:
            raise self._failure
        try:
            return call(slot)
        except EnvFailure as failure:
            self._failure = failure
            self._scheduler.release(self)
            raise

    def _reset(self, slot: Slot) -> StepResult:
        session = self._session
        if session.history:
            raise EnvError(f"the episode of task {self.task.id} has already started; start another one")
        if self._closed:
            raise EnvError(f"the episode of task {self.task.id} was closed before it started")
        request = {"op": "reset", "session": session.id, "task": to_json(self.task), "seed": self.seed}
        return slot.call(request, StepResult, session=session)

    def _step(self, slot: Slot, text: str) -> StepResult:
        self._check_started()
        if self._over:
            raise EnvError(f"the episode of task {self.task.id} is over and takes no further action")
        request = {"op": "step", "session": self._session.id, "text": text}
        try:
            result = slot.call(request, StepResult, session=self._session)
        except WorkerFailure as failure:
            result = StepResult(
                (Message("user", f"Error: the action ended the episode: {CAUSE_MESSAGES[failure.cause]}."),),
                terminated=True,
                info={"ended_by": "action", "reason": failure.reason},
            )
        self._over = result.done
        return result

    def _score(self, slot: Slot) -> float:
        self._check_started()
        session = self._session
        if self._judge is None:
            return slot.call({"op": "score", "session": session.id}, float, session=session)
        saved = slot.call({"op": "save", "session": session.id}, object, session=session)
        request = {"op": "judge", "task": to_json(self.task), "saved": saved}
        # Blocking this slot's thread keeps the episode's calls in order.
        return self._judge.submit(lambda judge: judge.call(request, float, about=session)).result()

    def _close(self, slot: Slot) -> None:
        try:
            slot.close(self._session)
        finally:
            self._scheduler.release(self)

    def _check_started(self) -> None:
        if not self._session.history:
            raise EnvError(f"the episode of task {self.task.id} has not started; call reset first")


class BlockingEnv:
    """An `Env` that waits for each call, for programs that run one episode at a time."""

    def __init__(self, start: Callable[[Task, int], Episode]) -> None:
        self._start = start
        self._episode: Episode | None = None

    def reset(self, task: Task, *, seed: int) -> StepResult:
        self.close()
        self._episode = self._start(task, seed)
        return self._episode.reset().result()

    def step(self, text: str) -> StepResult:
        return self._running().step(text).result()

    def score(self) -> float:
        return self._running().score().result()

    def close(self) -> None:
        if self._episode is not None:
            episode, self._episode = self._episode, None
            episode.close().result()

    def _running(self) -> Episode:
        if self._episode is None:
            raise EnvError("no episode has started; call reset first")
        return self._episode


class PooledExpert:
    """A scripted expert that runs inside a worker, so that the answers it knows stay there."""

    def __init__(self, slot: Slot, session: Session) -> None:
        self._slot = slot
        self._session = session
        # May run at any moment, so it must not block.
        weakref.finalize(self, slot.post, partial(Slot.dismiss, session=session)).atexit = False

    def __call__(self, result: StepResult) -> str:
        return self.submit(result).result()

    def submit(self, result: StepResult) -> Future[str]:
        """Return the next action as a future."""
        session = self._session
        request = {"op": "advise", "session": session.id, "result": to_json(result)}
        return self._slot.submit(lambda slot: slot.call(request, str, session=session))
