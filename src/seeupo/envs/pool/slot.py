"""One worker after another in one place, and the sessions that live there.

A slot has one thread, which makes all calls of its worker. When a worker dies or has to be killed, the next one takes
its place, and a session is brought back by repeating what happened in it when it is next called.
"""

from __future__ import annotations

import hashlib
import json
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from seeupo.envs.failures import CallTimedOut, EnvFailure, EnvRaised, NotReproducible, PoolClosed, WorkerLost
from seeupo.envs.pool.serve import Host
from seeupo.envs.pool.wire import WireError
from seeupo.envs.pool.worker import BLAMES_ACTION, Fault, Kind, Launch, Worker
from seeupo.errors import EnvError
from seeupo.types import EnvFactory

T = TypeVar("T")
ATTEMPTS = 2
"""What fails is tried once more, in a fresh worker."""


class ActionBrokeWorker(Exception):
    """An action broke two workers one after the other: it is to blame, not the infrastructure."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.kind = fault.kind
        self.reason = fault.reason


@dataclass
class Session:
    """An episode, or an expert at work: how it began, and what was asked of it since.

    Attributes:
        opening: the request that begins it.
        history: requests that were answered, the opening first, with digests of their answers.
        generation: the worker that it lives in, by its number in the slot.
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
    """Where a slot's requests go: a worker process, or a factory in this process."""

    def call(self, request: Mapping[str, Any], *, seconds: float | None = None) -> Any: ...

    def kill(self) -> None: ...

    def discard(self) -> None: ...


class InProcess:
    """A trusted factory, called directly: no limits, and no second attempt."""

    def __init__(self, factory: EnvFactory) -> None:
        self.host = Host(factory)

    def call(self, request: Mapping[str, Any], *, seconds: float | None = None) -> Any:
        try:
            return self.host.handle(request)
        except EnvError:
            raise
        except Exception as error:
            raise Fault(Kind.RAISED, f"{type(error).__name__}: {error}") from error

    def kill(self) -> None: ...

    def discard(self) -> None: ...


class Slot:
    """A thread, its backend and the sessions there.

    `submit`, `post`, `stop` and `join` are for other threads; the rest runs in the slot's own.
    """

    def __init__(self, name: str, source: Launch | EnvFactory) -> None:
        self.name = name
        self.source = source
        self.episodes = 0
        self.experts = 0
        self.generation = 0
        self.backend: Backend | None = None
        self.closing = False
        self.lock = threading.Lock()
        self.calls: queue.SimpleQueue[tuple[Callable[[Slot], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    @property
    def sessions(self) -> int:
        return self.episodes + self.experts

    @property
    def pid(self) -> int | None:
        """The worker's process, if there is one at the moment."""
        backend = self.backend
        return backend.process.pid if isinstance(backend, Worker) else None

    def submit(self, call: Callable[[Slot], T], future: Future[T]) -> None:
        """Have the slot's thread make the call, after those before it, and put its outcome into the future."""
        with self.lock:
            if not self.closing:
                if self.thread is None:
                    self.thread = threading.Thread(target=self._run, name=f"{self.name} worker", daemon=True)
                    self.thread.start()
                self.calls.put((call, future))
                return
        future.set_exception(self._closed())

    def post(self, call: Callable[[Slot], Any]) -> None:
        """Have a call made whose outcome nobody waits for. Takes no lock, so that finalizers may use it."""
        self.calls.put((call, Future()))

    def stop(self) -> None:
        """Kill the worker. What is waiting or under way fails with `PoolClosed`."""
        with self.lock:
            self.closing = True
            self.calls.put(None)
            if self.backend is not None:
                self.backend.kill()

    def join(self) -> None:
        """Wait until the slot's thread has cleared up; code of an environment in this process may keep it busy."""
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout=10)

    def _run(self) -> None:
        while (item := self.calls.get()) is not None:
            call, future = item
            if future.set_running_or_notify_cancel():
                try:
                    value = self._closing_fails(call)
                except BaseException as error:  # it belongs to whoever waits for the future
                    future.set_exception(error)
                else:
                    future.set_result(value)
            del item, call, future  # not to be kept alive while waiting for the next
        self._discard_backend()

    def _closing_fails(self, call: Callable[[Slot], T]) -> T:
        if self.closing:
            raise self._closed()
        return call(self)

    def ask(self, request: Mapping[str, Any], parse: Callable[[Any], T], *, about: Session | None = None) -> T:
        """A request to no session of this slot, `about` one of another slot perhaps."""
        seconds = self.source.limits.start_seconds if isinstance(self.source, Launch) else None
        return self._attempt(None, request, parse, about=about, seconds=seconds)

    def open(self, session: Session, parse: Callable[[Any], T]) -> T:
        """Begin a session."""
        return self._attempt(session, session.opening, parse, records=True)

    def advance(self, session: Session, request: Mapping[str, Any], parse: Callable[[Any], T]) -> T:
        """A request that changes the session, and is repeated if the session must be brought back."""
        return self._attempt(session, request, parse, records=True)

    def inspect(self, session: Session, request: Mapping[str, Any], parse: Callable[[Any], T]) -> T:
        """A request that leaves the session as it is."""
        return self._attempt(session, request, parse)

    def close(self, session: Session) -> None:
        """End a session. One whose worker is gone has ended already."""
        if session.generation != self.generation or self.backend is None:
            return
        session.generation = None
        request = {"op": "close", "session": session.id}
        try:
            self.backend.call(request)
        except Fault as fault:
            self._lose_backend()
            if fault.kind is not Kind.KILLED:
                raise self._failure(fault, session, request) from fault.__cause__

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
        """Make a call; if it fails, once more in a fresh worker. Two failures of the same origin decide."""
        blamed, failed = 0, 0
        while True:
            at_action = False
            try:
                backend = self._backend()
                if session is not None:
                    self._restore(session, backend, skip=request is session.opening)
                at_action = request["op"] == "step"
                value = backend.call(request, seconds=seconds)
                parsed = parsed_or_fault(parse, value)
            except Fault as fault:
                if self.closing:
                    raise self._closed() from None
                self._lose_backend()
                if at_action and fault.kind in BLAMES_ACTION:
                    blamed += 1
                else:
                    failed += 1
                if blamed == ATTEMPTS:
                    raise ActionBrokeWorker(fault) from None
                if failed == ATTEMPTS or not isinstance(self.source, Launch):
                    raise self._failure(fault, session or about, request) from fault.__cause__
            else:
                if session is not None and records:
                    session.history.append((request, digest(value)))
                    session.generation = self.generation
                return parsed

    def _restore(self, session: Session, backend: Backend, *, skip: bool) -> None:
        """Bring a session back that lived in an earlier worker, and compare."""
        if skip or session.generation == self.generation:
            return
        for request, expected in session.history:
            if digest(backend.call(request)) != expected:
                reason = f"repeating its {request['op']} in a fresh worker gave another result than before"
                raise NotReproducible(
                    environment=self.name, task=session.task, action=session.last_action, reason=reason
                )
        session.generation = self.generation

    def _backend(self) -> Backend:
        """The backend, made if need be. From then on `stop` can kill it, also while the factory is being loaded."""
        if self.backend is not None:
            return self.backend
        self.generation += 1
        if not isinstance(self.source, Launch):
            self.backend = InProcess(self.source)
            return self.backend
        with self.lock:
            if self.closing:
                raise self._closed()
            worker = self.backend = Worker(self.source)
        try:
            worker.load()
        except Fault:
            raise
        except BaseException:
            self._discard_backend()
            raise
        return worker

    def _lose_backend(self) -> None:
        """After a fault: the worker is replaced at the next call. A factory in this process stays."""
        if isinstance(self.source, Launch):
            self._discard_backend()

    def _discard_backend(self) -> None:
        with self.lock:
            backend, self.backend = self.backend, None
        if backend is not None:
            backend.discard()

    def _failure(self, fault: Fault, session: Session | None, request: Mapping[str, Any]) -> EnvFailure:
        kinds = {Kind.TIMEOUT: CallTimedOut, Kind.RAISED: EnvRaised}
        return kinds.get(fault.kind, WorkerLost)(
            environment=self.name,
            task=None if session is None else session.task,
            action=request.get("text") or (None if session is None else session.last_action),
            reason=f"{request['op']} failed: {fault.reason}",
        )

    def _closed(self) -> PoolClosed:
        return PoolClosed(environment=self.name, task=None, action=None, reason="the pool has been closed")


def parsed_or_fault(parse: Callable[[Any], T], value: Any) -> T:
    """What a worker answered, as a type; an answer that is none is an error of the environment."""
    try:
        return parse(value)
    except WireError as error:
        raise Fault(Kind.RAISED, str(error)) from None


def digest(value: Any) -> bytes:
    """Of an answer, for comparison. A result's info may differ: it is for people and may hold timings."""
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if key != "info"}
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
