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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from seeupo.envs.failures import CallTimedOut, EnvFailure, EnvRaised, NotReproducible, PoolClosed, WorkerLost
from seeupo.envs.pool.serve import Host, explain
from seeupo.envs.pool.wire import WireError
from seeupo.envs.pool.worker import ACTION_CAUSES, KILL_CAUSES, FailureCause, Launch, Worker, WorkerFailure
from seeupo.errors import EnvError, UserError
from seeupo.protocols import EnvFactory

T = TypeVar("T")
ATTEMPTS = 2
"""A failed call is retried once, in a fresh worker."""
JOIN_SECONDS = 10.0
"""Time that a slot's thread has to end. An environment in this process may block it forever."""


class ActionBrokeWorker(Exception):
    """An action broke two workers in a row, so the action is the cause and not the infrastructure."""

    def __init__(self, failure: WorkerFailure) -> None:
        super().__init__(failure.reason)
        self.cause = failure.cause
        self.reason = failure.reason


@dataclass
class Session:
    """State of an episode or an expert that is needed to replay it.

    Attributes:
        id: Unique in the pool.
        task: Id of the task.
        opening: First request.
        history: Answered requests, the opening first, with digests of their answers.
        generation: Number of the worker that holds the session, counted in the slot; None if none does.
    """

    id: str
    task: str
    opening: Mapping[str, Any]
    history: list[tuple[Mapping[str, Any], bytes]] = field(default_factory=list)
    generation: int | None = None

    @property
    def last_action(self) -> str | None:
        return self.history[-1][0].get("text") if self.history else None


class Backend(Protocol):
    """Receiver of a slot's requests: a worker process, or a factory in this process."""

    def call(self, request: Mapping[str, Any], *, seconds: float | None = None) -> Any: ...

    def kill(self) -> None: ...

    def discard(self) -> None: ...


class StartedWorker(Backend, Protocol):
    """A worker process, which loads its factory when it is told to."""

    def load(self) -> None: ...


StartWorker = Callable[[Launch], StartedWorker]
"""Launches a worker, on this machine or another one."""


class InProcess:
    """A trusted factory, called directly, without limits or retries."""

    def __init__(self, factory: EnvFactory) -> None:
        self.host = Host(factory)

    def call(self, request: Mapping[str, Any], *, seconds: float | None = None) -> Any:
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
    """

    def __init__(self, name: str, source: Launch | EnvFactory, start: StartWorker = Worker) -> None:
        """Create a slot; `start` launches its workers, by default on this machine."""
        self.name = name
        self.source = source
        self.start = start
        self.episodes = 0
        self.experts = 0
        self.generation = 0
        self.backend: Backend | None = None
        self.closing = False
        self.lock = threading.Lock()
        self.calls: queue.SimpleQueue[tuple[Callable[[Slot], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.running: Future[Any] | None = None
        self.thread: threading.Thread | None = None

    @property
    def sessions(self) -> int:
        return self.episodes + self.experts

    @property
    def pid(self) -> int | None:
        """Process id of the current worker; None if there is none."""
        backend = self.backend
        return backend.process.pid if isinstance(backend, Worker) else None

    def submit(self, call: Callable[[Slot], T], future: Future[T]) -> None:
        """Queue a call for the slot's thread; the future gets its result."""
        with self.lock:
            if not self.closing:
                if self.thread is None:
                    self.thread = threading.Thread(target=self._run, name=f"{self.name} worker", daemon=True)
                    self.thread.start()
                self.calls.put((call, future))
                return
        future.set_exception(self._closed())

    def post(self, call: Callable[[Slot], Any]) -> None:
        """Queue a call whose result is not needed. Takes no lock, so that finalizers may use it."""
        self.calls.put((call, Future()))

    def stop(self) -> None:
        """Kill the worker. Queued and running calls fail with `PoolClosed`."""
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
                        raise self._closed()
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
                    future.set_exception(self._closed())

    def ask(self, request: Mapping[str, Any], parse: Callable[[Any], T], *, about: Session | None = None) -> T:
        """Make a request that belongs to no session of this slot; `about` is a session of another slot, for errors."""
        seconds = self.source.limits.start_seconds if isinstance(self.source, Launch) else None
        return self._attempt(None, request, parse, about=about, seconds=seconds)

    def open(self, session: Session, parse: Callable[[Any], T]) -> T:
        """Start a session."""
        return self._attempt(session, session.opening, parse, records=True)

    def advance(self, session: Session, request: Mapping[str, Any], parse: Callable[[Any], T]) -> T:
        """Make a request that changes the session and is replayed if the session must be restored."""
        return self._attempt(session, request, parse, records=True)

    def inspect(self, session: Session, request: Mapping[str, Any], parse: Callable[[Any], T]) -> T:
        """Make a request that does not change the session."""
        return self._attempt(session, request, parse)

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

    def _attempt(
        self,
        session: Session | None,
        request: Mapping[str, Any],
        parse: Callable[[Any], T],
        *,
        about: Session | None = None,
        records: bool = False,
        seconds: float | None = None,
    ) -> T:
        """Make a call, and retry it in a fresh worker if it fails.

        Failures caused by the action and infrastructure failures are counted separately; two of a kind are final.
        """
        action_failures, other_failures = 0, 0
        while True:
            at_action = False
            try:
                backend = self._backend()
                if session is not None:
                    self._restore(session, backend, skip=request is session.opening)
                at_action = request["op"] == "step"
                value = backend.call(request, seconds=seconds)
                parsed = parse_answer(parse, value)
                if session is not None and records:
                    session.history.append((request, digest(value)))
                    session.generation = self.generation
                return parsed
            except WorkerFailure as failure:
                if self.closing:
                    raise self._closed() from None
                self._drop_worker()
                if at_action and failure.cause in ACTION_CAUSES:
                    action_failures += 1
                else:
                    other_failures += 1
                if action_failures == ATTEMPTS:
                    raise ActionBrokeWorker(failure) from None
                if other_failures == ATTEMPTS or not isinstance(self.source, Launch):
                    raise self._failure(failure, session or about, request) from failure.__cause__

    def _restore(self, session: Session, backend: Backend, *, skip: bool) -> None:
        """Replay a session that lived in an earlier worker, and compare the answers."""
        if skip or session.generation == self.generation:
            return
        for request, expected in session.history:
            if digest(backend.call(request)) != expected:
                reason = f"replaying its {request['op']} in a fresh worker gave a different result"
                raise NotReproducible(
                    environment=self.name, task=session.task, action=session.last_action, reason=reason
                )
        session.generation = self.generation

    def _backend(self) -> Backend:
        """Return the backend, starting it if necessary. `stop` can kill it even while it loads the factory."""
        if self.backend is not None:
            return self.backend
        self.generation += 1
        if not isinstance(self.source, Launch):
            self.backend = InProcess(self.source)
            return self.backend
        with self.lock:
            if self.closing:
                raise self._closed()
            worker = self.start(self.source)
            self.backend = worker
        try:
            worker.load()
        except WorkerFailure:
            raise
        except BaseException:
            self._discard_backend()
            raise
        return worker

    def _drop_worker(self) -> None:
        """Discard a worker after a failure; the next call starts another. A factory in this process stays."""
        if isinstance(self.source, Launch):
            self._discard_backend()

    def _discard_backend(self) -> None:
        with self.lock:
            backend, self.backend = self.backend, None
        if backend is not None:
            backend.discard()

    def _failure(self, failure: WorkerFailure, session: Session | None, request: Mapping[str, Any]) -> EnvFailure:
        types = {FailureCause.TIMEOUT: CallTimedOut, FailureCause.RAISED: EnvRaised}
        prefix = "" if failure.cause is FailureCause.RAISED else f"{request['op']} failed: "
        return types.get(failure.cause, WorkerLost)(
            environment=self.name,
            task=None if session is None else session.task,
            action=request.get("text") or (None if session is None else session.last_action),
            reason=f"{prefix}{failure.reason}",
        )

    def _closed(self) -> PoolClosed:
        return PoolClosed(environment=self.name, task=None, action=None, reason="the pool is closed")


def parse_answer(parse: Callable[[Any], T], value: Any) -> T:
    """Return a worker's answer as a type; a malformed answer counts as an exception of the environment."""
    try:
        return parse(value)
    except WireError as error:
        raise WorkerFailure(FailureCause.RAISED, f"the answer is malformed: {error}") from None


def digest(value: Any) -> bytes:
    """Return a digest of an answer for comparison, without `info`, which may contain timings."""
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if key != "info"}
    try:
        return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
    except (TypeError, ValueError, RecursionError) as error:  # also after decoding: the limits of nesting differ
        raise WorkerFailure(FailureCause.RAISED, f"the answer is not JSON: {error}") from None
