"""Handles that a pool returns: an episode with asynchronous calls, a blocking environment, and an expert."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from seeupo.envs.failures import EnvFailure
from seeupo.envs.pool.scheduler import Assignment
from seeupo.envs.pool.slot import ActionBrokeWorker, Session, Slot
from seeupo.envs.pool.wire import expect, expect_number, result_from_json, result_to_json, task_to_json
from seeupo.envs.pool.worker import FailureCause
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


class Episode:
    """One attempt at one task, in a slot of the pool.

    Calls run one after the other, in the order in which they were made. Callbacks of a future run in the slot's thread
    and should be short. Every infrastructure failure is an `EnvFailure`; all later calls fail with the same one.
    """

    def __init__(self, session: str, task: Task, seed: int, assignment: Assignment, judge: Slot | None) -> None:
        """Create the episode. `judge` is the slot that computes the score, if not the episode's own."""
        self.task = task
        self.seed = seed
        self._assignment = assignment
        self._judge = judge
        self._session = Session(
            session, task.id, {"op": "reset", "session": session, "task": task_to_json(task), "seed": seed}
        )
        self._over = False
        self._closed = False
        self._failure: EnvFailure | None = None

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
        return self._assignment.submit(self._close)

    def _submit(self, call: Callable[[Slot], T]) -> Future[T]:
        if self._closed:
            refused: Future[T] = Future()
            refused.set_exception(EnvError(f"the episode of task {self.task.id} is closed; start another one"))
            return refused
        return self._assignment.submit(partial(self._call, call))

    def _call(self, call: Callable[[Slot], T], slot: Slot) -> T:
        """Run a call in the slot's thread. A failure releases the slot and is the result of all later calls."""
        if self._failure is not None:
            raise self._failure
        try:
            return call(slot)
        except EnvFailure as failure:
            self._failure = failure
            self._assignment.release()
            raise

    def _reset(self, slot: Slot) -> StepResult:
        if self._session.history:
            raise EnvError(f"the episode of task {self.task.id} has already started; start another one")
        if self._closed:
            raise EnvError(f"the episode of task {self.task.id} was closed before it started")
        return slot.open(self._session, result_from_json)

    def _step(self, slot: Slot, text: str) -> StepResult:
        self._check_started()
        if self._over:
            raise EnvError(f"the episode of task {self.task.id} is over and takes no further action")
        request = {"op": "step", "session": self._session.id, "text": text}
        try:
            result = slot.advance(self._session, request, result_from_json)
        except ActionBrokeWorker as broken:
            result = StepResult(
                (Message("user", f"Error: the action ended the episode: {CAUSE_MESSAGES[broken.cause]}."),),
                terminated=True,
                info={"ended_by": "action", "reason": broken.reason},
            )
        self._over = result.done
        return result

    def _score(self, slot: Slot) -> float:
        self._check_started()
        session = self._session
        if self._judge is None:
            return slot.inspect(session, {"op": "score", "session": session.id}, score_from_json)
        saved = slot.inspect(session, {"op": "save", "session": session.id}, lambda value: value)
        request = {"op": "judge", "task": task_to_json(self.task), "saved": saved}
        # Blocking this slot's thread keeps the episode's calls in order.
        judged: Future[float] = Future()
        self._judge.submit(lambda judge: judge.ask(request, score_from_json, about=session), judged)
        return judged.result()

    def _close(self, slot: Slot) -> None:
        try:
            slot.close(self._session)
        finally:
            self._assignment.release()

    def _check_started(self) -> None:
        if not self._session.history:
            raise EnvError(f"the episode of task {self.task.id} has not started; call reset first")


def score_from_json(value: Any) -> float:
    return expect_number(value, "score")


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
        weakref.finalize(self, dismiss, slot, session).atexit = False

    def __call__(self, result: StepResult) -> str:
        return self.submit(result).result()

    def submit(self, result: StepResult) -> Future[str]:
        """Return the next action as a future."""
        session = self._session
        request = {"op": "advise", "session": session.id, "result": result_to_json(result)}
        future: Future[str] = Future()
        self._slot.submit(lambda slot: slot.advance(session, request, partial(expect, kind=str, what="action")), future)
        return future


def dismiss(slot: Slot, session: Session) -> None:
    """End an expert that was garbage-collected. May run at any moment, so it must not block."""
    slot.post(partial(Slot.dismiss, session=session))
