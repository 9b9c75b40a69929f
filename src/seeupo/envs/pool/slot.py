"""A slot: one worker at a time, and the sessions that live in it.

A slot has one thread, which makes all calls to its worker. When the worker dies or has to be killed, a fresh one
replaces it. A session is restored by replaying its requests when it is next called.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from seeupo.envs.failures import EnvFailure, FailureCause, WorkerFailure, pool_closed
from seeupo.envs.pool.serve import Host, explain
from seeupo.envs.pool.wire import WireError, from_json
from seeupo.envs.pool.worker import Launch, Worker
from seeupo.errors import EnvError, UserError
from seeupo.protocols import EnvFactory
from seeupo.types import FailureKind

T = TypeVar("T")
Request = Mapping[str, Any]
REPLAYED = frozenset({"reset", "step", "expert", "advise"})
"""Requests that change a session."""
ATTEMPTS = 2
"""A failed call is retried once, in a fresh worker."""
JOIN_SECONDS = 10.0
"""Time that a slot's thread has to end. An environment in this process may block it forever."""
ACTION_CAUSES = frozenset(FailureCause) - {FailureCause.KILLED, FailureCause.RAISED}
"""Failures that an action can cause. A kill from outside and an exception of the environment are not among them."""
KILL_CAUSES = frozenset({FailureCause.KILLED, FailureCause.MEMORY, FailureCause.STOPPED})
"""Causes of kills, from outside or by the watchdog."""
FAILURE_KINDS = {FailureCause.TIMEOUT: FailureKind.TIMED_OUT, FailureCause.RAISED: FailureKind.RAISED}
"""Kinds of failures by their causes; `WORKER_LOST` for all others."""


@dataclass
class Session:
    """State of an episode or an expert that is needed to replay it.

    Attributes:
        id: Unique in the pool.
        task: Id of the task.
        history: Answered requests that changed the session, with digests of their answers.
        generation: Number of the worker that holds the session, counted in the slot; None if none does.
    """

    id: str
    task: str
    history: list[tuple[Request, bytes]] = field(default_factory=list)
    generation: int | None = None

    @property
    def last_action(self) -> str | None:
        return self.history[-1][0].get("text") if self.history else None


class Backend(Protocol):
    """Receiver of a slot's requests: a worker process, here or on another node, or a factory in this process."""

    def load(self) -> None:
        """Load the factory."""

    def call(self, request: Request, *, seconds: float | None = None) -> Any:
        """Return the answer to a request; `seconds` replaces the time limit of calls."""

    def kill(self) -> None:
        """End running calls. Any thread may call this."""

    def discard(self) -> None:
        """Release everything, after the last call."""


class InProcess:
    """A trusted factory, called directly, without limits or retries."""

    def __init__(self, factory: EnvFactory) -> None:
        self.host = Host(factory)

    def load(self) -> None: ...

    def call(self, request: Request, *, seconds: float | None = None) -> Any:
        try:
            return self.host.handle(request)
        except UserError as error:
            raise EnvError(*error.lines) from None
        except BaseException as error:  # also SystemExit: an environment must not end the program
            raise WorkerFailure(FailureCause.RAISED, explain(error, request["op"])) from error

    def kill(self) -> None: ...

    def discard(self) -> None: ...


class Slot:
    """A thread, its backend and its sessions.

    `submit`, `post`, `stop` and `join` may be called from any thread; everything else runs in the slot's thread.

    Attributes:
        episodes: Episodes that have a place in the slot.
        experts: Number of experts that live in it.
        generation: Number of backends so far.
    """

    def __init__(
        self, name: str, source: Launch | EnvFactory, start: Callable[[Launch], Backend] | None = None
    ) -> None:
        """Create a slot of the environment `name`; `start` launches its workers, by default on this machine."""
        self.name = name
        self.source = source
        self.start: Callable[[Any], Backend] = start or (Worker if isinstance(source, Launch) else InProcess)
        self.episodes: set[object] = set()
        self.experts = 0
        self.generation = 0
        self.backend: Backend | None = None
        self.closing = False
        self.lock = threading.Lock()
        self.calls: queue.SimpleQueue[tuple[Callable[[Slot], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.running: Future[Any] | None = None
        self.thread: threading.Thread | None = None

    def submit(self, call: Callable[[Slot], T], future: Future[T] | None = None) -> Future[T]:
        """Queue a call for the slot's thread, and return a future of its result: `future` if there is one already."""
        future = Future() if future is None else future
        with self.lock:
            if not self.closing:
                if self.thread is None:
                    self.thread = threading.Thread(target=self._run, name=f"{self.name} worker", daemon=True)
                    self.thread.start()
                self.calls.put((call, future))
                return future
        future.set_exception(pool_closed(self.name))
        return future

    def post(self, call: Callable[[Slot], Any]) -> None:
        """Queue a call whose result is not needed. Takes no lock, so that finalizers may use it."""
        self.calls.put((call, Future()))

    def stop(self) -> None:
        """Kill the worker. Queued and running calls fail."""
        with self.lock:
            self.closing = True
            self.calls.put(None)
            if self.backend is not None:
                self.backend.kill()

    def join(self) -> None:
        """Wait until the slot's thread has cleaned up. If an environment blocks it, its calls fail without it."""
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout=JOIN_SECONDS)
            if self.thread.is_alive():
                self._abandon()

    def _run(self) -> None:
        while (item := self.calls.get()) is not None:
            call, future = item
            if future.set_running_or_notify_cancel():
                self.running = future
                try:
                    if self.closing:
                        raise pool_closed(self.name)
                    value = call(self)
                except BaseException as error:  # re-raised by the future
                    with contextlib.suppress(InvalidStateError):  # abandoned
                        future.set_exception(error)
                else:
                    with contextlib.suppress(InvalidStateError):
                        future.set_result(value)
                self.running = None
            del item, call, future  # do not keep them alive while waiting for the next call
        self._discard_backend()

    def _abandon(self) -> None:
        """Fail the running call and those behind it. The thread is a daemon and does not keep the program alive."""
        waiting = [self.running]
        with contextlib.suppress(queue.Empty):
            while True:
                item = self.calls.get_nowait()
                waiting.append(None if item is None else item[1])
        self.calls.put(None)
        for future in waiting:
            with contextlib.suppress(InvalidStateError):
                if future is not None:
                    future.set_exception(pool_closed(self.name))

    def call(
        self,
        request: Request,
        kind: type[T],
        *,
        session: Session | None = None,
        about: Session | None = None,
    ) -> T:
        """Make a request, and retry it in a fresh worker if it fails.

        Failures caused by the action and infrastructure failures are counted separately; two of a kind are final.

        Args:
            request: The request, whose "op" names a method of `Host`.
            kind: Type of the answer.
            session: Session that the request belongs to. It is restored first if its worker is gone.
            about: Session of another slot, for errors.

        Raises:
            WorkerFailure: The action broke two workers in a row, so it is the cause and not the infrastructure.
            EnvFailure: Another failure happened twice.
            EnvError: The user can fix the error.
        """
        seconds = self.source.limits.start_seconds if session is None and isinstance(self.source, Launch) else None
        failures: Counter[bool] = Counter()
        while True:
            at_action = False
            try:
                backend = self._started_backend()
                if session is not None:
                    self._restore(session, backend)
                at_action = request["op"] == "step"
                value = backend.call(request, seconds=seconds)
                try:
                    answer = from_json(kind, value, request["op"])
                except WireError as error:
                    raise WorkerFailure(FailureCause.RAISED, f"the answer is malformed: {error}") from None
                if session is not None and request["op"] in REPLAYED:
                    session.history.append((request, digest(value)))
                return answer
            except WorkerFailure as failure:
                if self.closing:
                    raise pool_closed(self.name) from None
                self._drop_worker()
                by_action = at_action and failure.cause in ACTION_CAUSES
                failures[by_action] += 1
                if by_action and failures[by_action] == ATTEMPTS:
                    raise
                if failures[False] == ATTEMPTS or not isinstance(self.source, Launch):
                    raise self._failure(failure, session or about, request) from failure.__cause__

    def close(self, session: Session) -> None:
        """End a session; does nothing if its worker is gone. A worker that is killed meanwhile has ended it too."""
        if session.generation != self.generation or self.backend is None:
            return
        session.generation = None
        request = {"op": "close", "session": session.id}
        try:
            self.backend.call(request)
        except WorkerFailure as failure:
            self._drop_worker()
            if failure.cause not in KILL_CAUSES:
                raise self._failure(failure, session, request) from failure.__cause__

    def dismiss(self, session: Session) -> None:
        """End an expert's session."""
        self.experts -= 1
        self.close(session)

    def _restore(self, session: Session, backend: Backend) -> None:
        """Replay a session that lived in an earlier worker, and compare the answers."""
        if session.generation == self.generation:
            return
        for request, expected in session.history:
            if digest(backend.call(request)) != expected:
                reason = f"replaying its {request['op']} in a fresh worker gave a different result"
                raise EnvFailure(
                    FailureKind.NOT_REPRODUCIBLE, self.name, reason, task=session.task, action=session.last_action
                )
        session.generation = self.generation

    def _started_backend(self) -> Backend:
        """Return the backend, starting it if necessary. `stop` can kill it even while it loads the factory."""
        if self.backend is not None:
            return self.backend
        with self.lock:
            if self.closing:
                raise pool_closed(self.name)
            self.generation += 1
            backend = self.backend = self.start(self.source)
        try:
            backend.load()
        except BaseException:
            self._discard_backend()
            raise
        return backend

    def _drop_worker(self) -> None:
        """Discard a worker after a failure; the next call starts another. A factory in this process stays."""
        if isinstance(self.source, Launch):
            self._discard_backend()

    def _discard_backend(self) -> None:
        with self.lock:
            backend, self.backend = self.backend, None
        if backend is not None:
            backend.discard()

    def _failure(self, failure: WorkerFailure, session: Session | None, request: Request) -> EnvFailure:
        prefix = "" if failure.cause is FailureCause.RAISED else f"{request['op']} failed: "
        return EnvFailure(
            FAILURE_KINDS.get(failure.cause, FailureKind.WORKER_LOST),
            self.name,
            f"{prefix}{failure.reason}",
            task=None if session is None else session.task,
            action=request.get("text") or (None if session is None else session.last_action),
        )


def digest(value: Any) -> bytes:
    """Return a digest of an answer for comparison, without `info`, which may contain timings."""
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if key != "info"}
    try:
        return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
    except (TypeError, ValueError, RecursionError) as error:  # also after decoding: the limits of nesting differ
        raise WorkerFailure(FailureCause.RAISED, f"the answer is not JSON: {error}") from None
