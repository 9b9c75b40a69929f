"""Samplers in Ray actors: one that dies is replaced, and its unfinished requests run again elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from seeupo.distributed.direct_transfer import DirectSource, DirectTransfer
from seeupo.distributed.placement import Bundles, reserve_separate
from seeupo.distributed.ray_cluster import wait_for_bundles
from seeupo.distributed.sampler_actor import FETCH_SECONDS, SamplerActor, store_weights
from seeupo.errors import EngineLost, TrainingError, UserError, first_line
from seeupo.inference.sampling import check_idle
from seeupo.protocols import Sampler, TrainableEngine
from seeupo.types import Completion, GenerationRequest, Turn

WORK_SECONDS = 0.1
"""Time after which an actor returns to take new requests, or earlier if a request has finished."""
POLL_SECONDS = 0.5
"""Time limit of a poll, in which no actor may have finished anything."""
OUTDATED = -1
"""Version of weights from before the last sync. A warm start changes the weights of version 0, too."""


@dataclass(eq=False)
class Slot:
    """The place of one sampler.

    Attributes:
        actor: Ray actor; another one after a loss.
        call: The call that it has not answered, and the time at which it counts as lost.
        version: Version of the weights that it has; None while it starts.
        loading: Version that the current call loads.
        away: Whether it is a replacement that has not started yet; nothing waits for it.
        waiting, running: Requests that were not sent yet, and that were.
        cancelled: Requests that were sent, and that the actor has to drop.
        losses: Number of actors lost since a request has finished.
    """

    number: int
    actor: Any = None
    call: Any = None
    deadline: float = 0.0
    version: int | None = None
    loading: int | None = None
    away: bool = False
    waiting: list[GenerationRequest] = field(default_factory=list)
    running: dict[str, GenerationRequest] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    losses: int = 0

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)


class RemoteSamplers:
    """Distributes requests over samplers in Ray actors.

    Requests of one episode go to the same sampler, which has computed the turns before; others to the one with the
    fewest requests. Weights are put into Ray's object store once for all samplers. An actor that dies or does not
    answer is replaced: requests run again with the same seeds, so they give the same completions.

    Args:
        make: Makes a sampler in its actor; picklable.
        gpus: Number of GPUs that each sampler reserves: 0 on CPUs, and on GPUs that the trainers have reserved.
        shared: Resources that the trainers use as well; None reserves some for the samplers alone.
        lockstep: Whether `poll` returns completions only when all requests have finished, in the order of submission;
            a deterministic runner waits for all of them anyway.
        direct: Transfer of weights from the engine's GPUs; None uses Ray's object store. With a direct transfer only
            the engine has the weights, so a lost sampler is replaced at the next sync. It has never been run on GPUs.
        restarts: Number of times that a sampler is replaced without any completion in between.
    """

    def __init__(
        self,
        make: Callable[[], Sampler],
        count: int,
        *,
        gpus: float = 0,
        shared: Bundles | None = None,
        lockstep: bool = False,
        direct: DirectTransfer | None = None,
        restarts: int = 3,
        start_seconds: float = 900.0,
        call_seconds: float = 600.0,
    ) -> None:
        self.make = make
        self.gpus = gpus
        self.lockstep = lockstep
        self.direct = direct
        self.restarts = restarts
        self.start_seconds = start_seconds
        self.call_seconds = call_seconds
        self.version = 0
        self._weights: list[Any] | None = None
        self._unfinished: dict[str, GenerationRequest] = {}
        self._finished: dict[str, Completion] = {}
        self._episodes: dict[str, Slot] = {}
        self._bundles = shared or reserve_separate(count, gpus)
        self._reserved = self._bundles if shared is None else None
        self._slots = [Slot(number) for number in range(count)]
        for slot in self._slots:
            self._start(slot)

    def submit(self, request: GenerationRequest) -> None:
        if request.id in self._unfinished:
            raise ValueError(f"request {request.id} is being sampled; expected another id")
        self._unfinished[request.id] = request
        self._assign(request)

    def poll(self) -> list[Completion]:
        """Send waiting requests, wait for an answer, and return the completions that have finished."""
        self._collect(POLL_SECONDS if self._unfinished else 0)
        if self.lockstep and any(name not in self._finished for name in self._unfinished):
            return []
        ready = [name for name in self._unfinished if name in self._finished]
        for name in ready:
            del self._unfinished[name]
        return [self._finished.pop(name) for name in ready]

    def cancel(self, ids: Iterable[str]) -> None:
        for name in ids:
            self._unfinished.pop(name, None)
            self._finished.pop(name, None)
            for slot in self._slots:
                slot.waiting = [request for request in slot.waiting if request.id != name]
                if slot.running.pop(name, None) is not None:
                    slot.cancelled.append(name)

    def sync(self, engine: TrainableEngine, version: int) -> None:
        """Load the engine's weights in all samplers; replacements that are still starting get them later."""
        check_idle(self._unfinished, "weights cannot change")
        self._episodes.clear()
        self._wait_for_samplers()
        if self.direct is None:
            self._weights = store_weights(engine)
            self.version = version
            for slot in self._slots:
                if slot.version is not None:
                    slot.version = OUTDATED
        else:
            self._send(engine, version, self.direct)
        self._wait_for_samplers()

    def draft_from(self, turns: Iterable[Turn]) -> None:
        """Do nothing: this sampler guesses no tokens."""

    def release(self) -> None:
        check_idle(self._unfinished, "memory cannot be released")
        self._wait_for_samplers()
        for slot in self._slots:
            if not slot.away:
                self._call(slot, "call", "release", seconds=self.call_seconds)
        self._wait_for_samplers()

    def close(self) -> None:
        """Stop all actors; idempotent."""
        import ray

        slots, self._slots = self._slots, []
        if not ray.is_initialized():  # the actors have ended with the cluster
            return
        for slot in slots:
            _kill(slot)
        if slots and self._reserved is not None:
            self._reserved.close()

    def _assign(self, request: GenerationRequest) -> None:
        present = self._present()
        slot = self._episodes.get(request.episode) if request.episode is not None else None
        if slot is None or slot not in present:
            slot = min(present, key=lambda candidate: candidate.load)
        if request.episode is not None:
            self._episodes[request.episode] = slot
        slot.waiting.append(request)

    def _collect(self, seconds: float) -> None:
        """Give idle samplers work, wait for an answer, and handle all answers that have arrived."""
        import ray

        for slot in self._slots:
            self._continue(slot)
        calls = [slot.call for slot in self._slots if slot.call is not None]
        if calls:
            ray.wait(calls, num_returns=1, timeout=seconds)
            arrived = set(ray.wait(calls, num_returns=len(calls), timeout=0)[0])
            for slot in self._slots:
                if slot.call in arrived:
                    self._handle_answer(slot)
                elif slot.call is not None and time.monotonic() > slot.deadline:
                    self._replace(slot, "it did not answer in time")

    def _continue(self, slot: Slot) -> None:
        """Start the next call of an idle sampler: load weights that it does not have, or sample."""
        if slot.call is not None or slot.version is None:
            return
        if slot.version != self.version and self._weights is not None:
            slot.loading = self.version
            self._call(slot, "load", self._weights, self.version, seconds=self.call_seconds)
        elif (slot.load or slot.cancelled) and not slot.away:
            requests, slot.waiting = slot.waiting, []
            cancelled, slot.cancelled = slot.cancelled, []
            slot.running |= {request.id: request for request in requests}
            self._call(slot, "work", requests, cancelled, WORK_SECONDS, seconds=self.call_seconds)

    def _handle_answer(self, slot: Slot) -> None:
        import ray
        from ray.exceptions import RayError, RayTaskError

        call, slot.call = slot.call, None
        try:
            answer = ray.get(call, timeout=FETCH_SECONDS)
        except RayTaskError as error:
            if isinstance(error.cause, (UserError, ValueError)):
                raise error.cause from None
            self._replace(slot, first_line(error.cause if isinstance(error.cause, Exception) else error))
            return
        except RayError as error:
            self._replace(slot, first_line(error))
            return
        if slot.loading is not None:
            # A replacement without the trainer's weights stays away until the next sync.
            slot.version, slot.loading = slot.loading, None
            slot.away = slot.away and self.direct is not None
        for completion in answer or ():
            self._finish(slot, completion)

    def _finish(self, slot: Slot, completion: Completion) -> None:
        if completion.id not in slot.running:
            return  # it was cancelled in the meantime
        if completion.version != self.version:
            raise TrainingError(
                f"sampler {slot.number} used version {completion.version} of the weights; expected version "
                f"{self.version}. Its weights were not replaced after an update, so ratios would be wrong"
            )
        del slot.running[completion.id]
        self._finished[completion.id] = completion
        for other in self._slots:
            other.losses = 0

    def _replace(self, slot: Slot, reason: str) -> None:
        """Start another actor, and give the requests of the lost one to samplers that run."""
        _kill(slot)
        slot.losses += 1
        if slot.losses > self.restarts:
            self.close()
            raise TrainingError(
                f"sampler {slot.number} was lost {self.restarts + 1} times without a completion in between; the last "
                f"time: {reason}. Look for the cause in Ray's logs, for example memory that a sampler lacks"
            )
        requests = [*slot.running.values(), *slot.waiting]
        slot.running = {}
        slot.waiting = []
        slot.cancelled = []
        slot.away = True
        all_away = all(other.away for other in self._slots)
        if all_away:
            wait_for_bundles(self._bundles.group, 1)  # if nodes were lost, the others may not have room for a sampler
        self._start(slot)
        if requests and self.direct and all_away:
            self._unfinished.clear()
            self._finished.clear()
            raise EngineLost(f"all samplers were lost ({reason}), and only the trainer has the weights")
        for request in requests:
            self._assign(request)

    def _start(self, slot: Slot) -> None:
        slot.actor = self._bundles.start(SamplerActor, slot.number, self.gpus)
        slot.version, slot.loading = None, self.version
        devices = self._bundles.devices[slot.number] if self._bundles.devices else ()
        self._call(slot, "start", self.make, self._weights, self.version, devices, seconds=self.start_seconds)

    def _call(self, slot: Slot, method: str, *arguments: Any, seconds: float) -> None:
        slot.call = getattr(slot.actor, method).remote(*arguments)
        slot.deadline = time.monotonic() + seconds

    def _wait_for_samplers(self) -> None:
        """Wait until the samplers are idle with the current weights; for replacements only if there are no others."""
        while any(slot.call is not None or slot.cancelled or slot.version != self.version for slot in self._present()):
            self._collect(POLL_SECONDS)

    def _present(self) -> list[Slot]:
        return [slot for slot in self._slots if not slot.away] or self._slots

    def _send(self, engine: TrainableEngine, version: int, transfer: DirectTransfer) -> None:
        """Have the engine send its weights to all samplers that have started."""
        if "send" not in engine.capabilities:
            raise TypeError(f'{type(engine).__name__} lacks the capability "send", which a direct transfer needs')
        source = cast("DirectSource", engine)
        started = [slot for slot in self._slots if slot.call is None]
        source.send_weights({slot.number: slot.actor for slot in started}, version, transfer)
        self.version = version
        for slot in started:
            slot.version, slot.away = version, False


def _kill(slot: Slot) -> None:
    import ray

    slot.call = None
    if slot.actor is not None:
        ray.kill(slot.actor)
        slot.actor = None


if TYPE_CHECKING:
    _sampler: type[Sampler] = RemoteSamplers  # let mypy verify the protocol
