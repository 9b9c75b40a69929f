"""Samplers in Ray actors: one that dies is replaced, and its unfinished requests run again elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from torch import Tensor

from seeupo.core.checks import check_at_least, check_count
from seeupo.distributed.placement import SharedPlacement
from seeupo.distributed.ray_cluster import reserve, wait_for_bundles
from seeupo.distributed.vllm_sampler import CHUNK_BYTES, chunks
from seeupo.errors import EngineLost, TrainingError, UserError, first_line
from seeupo.inference.settings import SamplerSettings
from seeupo.protocols import Sampler, TrainableEngine, WeightSource
from seeupo.types import Completion, GenerationRequest, Turn

WORK_SECONDS = 0.1
"""Time after which an actor returns to take new requests, or earlier if a request has finished."""
POLL_SECONDS = 0.5
"""Time limit of a poll, in which no actor may have finished anything."""
FETCH_SECONDS = 300.0
"""Time limit for weights or completions to arrive from another node."""

OUTDATED = -1
"""Version of weights from before the last sync. A warm start changes the weights of version 0, too."""


@dataclass(frozen=True)
class DirectTransfer:
    """A transfer of weights from the GPUs of a cluster engine to those of vLLM samplers.

    Attributes:
        backend: Backend of vLLM's weight transfer: "nccl" between GPUs, "ipc" on GPUs that trainers and samplers share.
        workers: Number of GPUs per sampler.
        dtype: Data type of the samplers.
    """

    backend: Literal["nccl", "ipc"]
    workers: int
    dtype: str


def direct_transfer(
    settings: SamplerSettings, *, cluster: bool, device: str, dtype: str, per_turn: bool = False
) -> DirectTransfer | None:
    """Return how weights reach vLLM samplers on the GPUs of a cluster; None if they go through Ray's object store.

    With one adapter per turn (`per_turn`), only adapters are sent, which are small and which vLLM reads from files.
    """
    if settings.kind != "vllm" or not cluster or not device.startswith("cuda") or per_turn:
        return None
    return DirectTransfer("ipc" if settings.placement == "shared" else "nccl", settings.tensor_parallel, dtype)


class DirectSource(TrainableEngine, Protocol):
    """A train engine with the capability "send": it sends weights from its GPUs to those of samplers."""

    def send_weights(self, samplers: Mapping[int, Any], version: int, transfer: DirectTransfer) -> None:
        """Replace the weights of the samplers' Ray actors, which are given by their numbers."""


class SamplerActor:
    """The body of a Ray actor with a sampler, made by a picklable function."""

    def __init__(self) -> None:
        self._sampler: Any = None
        self._unfinished = 0

    def start(
        self, make: Callable[[], Sampler], weights: Sequence[Any] | None, version: int, devices: Sequence[str]
    ) -> None:
        """Make the sampler, on these GPUs if Ray has not chosen them.

        This is not done in the constructor, whose errors Ray reports without their type.
        """
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        self._sampler = make()
        if weights is not None:
            self.load(weights, version)

    def load(self, weights: Sequence[Any], version: int) -> None:
        """Load weights from Ray's object store."""
        self._sampler.sync(StoredWeights(weights), version)

    def work(self, requests: Sequence[GenerationRequest], seconds: float) -> list[Completion]:
        """Sample until a request has finished or the time is over."""
        for request in requests:
            self._sampler.submit(request)
        self._unfinished += len(requests)
        finished: list[Completion] = []
        end = time.monotonic() + seconds
        while self._unfinished and not finished and time.monotonic() < end:
            finished = self._sampler.poll()
        self._unfinished -= len(finished)
        return finished

    def call(self, method: str, *arguments: Any) -> Any:
        """Call another method of the sampler."""
        return getattr(self._sampler, method)(*arguments)


@dataclass
class StoredWeights:
    """Weights in Ray's object store, in chunks."""

    chunks: Sequence[Any]

    def owns(self, model: object) -> bool:
        return False

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        import ray

        for chunk in self.chunks:
            yield from ray.get(chunk, timeout=FETCH_SECONDS)


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
        count: Number of samplers.
        gpus: Number of GPUs that each sampler reserves: 0 on CPUs, and on GPUs that the trainers have reserved.
        shared: Resources that the trainers use as well; None reserves some for the samplers alone.
        lockstep: Whether `poll` returns completions only when all requests have finished, in the order of submission;
            a deterministic runner waits for all of them anyway.
        direct: Transfer of weights from the engine's GPUs; None uses Ray's object store. With a direct transfer only
            the engine has the weights, so a lost sampler is replaced at the next sync. It has never been run on GPUs.
        restarts: Number of times that a sampler is replaced without any completion in between.
        start_seconds: Time limit for a sampler to start.
        call_seconds: Time limit for a sampler to answer.
    """

    def __init__(
        self,
        make: Callable[[], Sampler],
        count: int,
        *,
        gpus: float = 0,
        shared: SharedPlacement | None = None,
        lockstep: bool = False,
        direct: DirectTransfer | None = None,
        restarts: int = 3,
        start_seconds: float = 900.0,
        call_seconds: float = 600.0,
    ) -> None:
        check_count("count", count, 1)
        check_count("restarts", restarts, 0)
        check_at_least("start_seconds", start_seconds, 1)
        check_at_least("call_seconds", call_seconds, 1)
        self.make, self.gpus, self.shared, self.lockstep, self.direct = make, gpus, shared, lockstep, direct
        self.restarts, self.start_seconds, self.call_seconds = restarts, start_seconds, call_seconds
        self.version = 0
        self._weights: list[Any] | None = None
        self._unfinished: dict[str, GenerationRequest] = {}
        self._finished: dict[str, Completion] = {}
        self._episodes: dict[str, Slot] = {}
        self._own_bundles: Any = None
        if shared is None:
            self._own_bundles = reserve([{"CPU": 1} | ({"GPU": gpus} if gpus else {})] * count)
        self._bundles = self._own_bundles if shared is None else shared.group
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

    def sync(self, engine: TrainableEngine, version: int) -> None:
        """Load the engine's weights in all samplers; replacements that are still starting get them later."""
        if self._unfinished:
            raise RuntimeError("weights cannot change while requests are being sampled; poll until all have finished")
        self._episodes.clear()
        self._wait_for_samplers()
        if self.direct is None:
            self._weights = _put(engine)
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
        if self._unfinished:
            raise RuntimeError(
                "memory cannot be released while requests are being sampled; poll until all have finished"
            )
        self._wait_for_samplers()
        for slot in self._slots:
            if not slot.away:
                self._call(slot, "call", "release", seconds=self.call_seconds)
        self._wait_for_samplers()

    def close(self) -> None:
        """Stop all actors; idempotent."""
        import ray
        from ray.util.placement_group import remove_placement_group

        slots, self._slots = self._slots, []
        if not ray.is_initialized():  # the actors have ended with the cluster
            return
        for slot in slots:
            _kill(slot)
        if self._own_bundles is not None:
            remove_placement_group(self._own_bundles)
            self._own_bundles = None

    def _assign(self, request: GenerationRequest) -> None:
        present = self._present()
        slot = self._episodes.get(request.episode) if request.episode is not None else None
        if slot is None or slot not in present:
            slot = min(present, key=lambda each: each.load)
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
        elif slot.load and not slot.away:
            requests, slot.waiting = slot.waiting, []
            slot.running |= {request.id: request for request in requests}
            self._call(slot, "work", requests, WORK_SECONDS, seconds=self.call_seconds)

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
        if completion.version != self.version:
            raise TrainingError(
                f"sampler {slot.number} used version {completion.version} of the weights; expected version "
                f"{self.version}. Its weights were not replaced after an update, so ratios would be wrong"
            )
        del slot.running[completion.id]
        self._finished[completion.id] = completion
        for each in self._slots:
            each.losses = 0

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
        slot.running, slot.waiting, slot.away = {}, [], True
        all_away = all(each.away for each in self._slots)
        if all_away:
            wait_for_bundles(self._bundles, 1)  # if nodes were lost, the others may not have room for a sampler
        self._start(slot)
        if requests and self.direct and all_away:
            self._unfinished.clear()
            self._finished.clear()
            raise EngineLost(f"all samplers were lost ({reason}), and only the trainer has the weights")
        for request in requests:
            self._assign(request)

    def _start(self, slot: Slot) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor: Any = ray.remote(SamplerActor)
        slot.actor = actor.options(
            num_cpus=1,
            num_gpus=self.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._bundles, slot.number),
        ).remote()
        slot.version, slot.loading = None, self.version
        devices = self.shared.devices[slot.number] if self.shared is not None and self.shared.devices else ()
        self._call(slot, "start", self.make, self._weights, self.version, devices, seconds=self.start_seconds)

    def _call(self, slot: Slot, method: str, *arguments: Any, seconds: float) -> None:
        slot.call = getattr(slot.actor, method).remote(*arguments)
        slot.deadline = time.monotonic() + seconds

    def _wait_for_samplers(self) -> None:
        """Wait until the samplers are idle with the current weights; for replacements only if there are no others."""
        while any(slot.call is not None or slot.version != self.version for slot in self._present()):
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


def _put(engine: WeightSource) -> list[Any]:
    """Put an engine's weights into Ray's object store, in chunks, and return references to them."""
    import ray

    on_cpu = ((name, weight.detach().cpu()) for name, weight in engine.weights())
    return [ray.put(chunk) for chunk in chunks(on_cpu, CHUNK_BYTES)]


def _kill(slot: Slot) -> None:
    import ray

    slot.call = None
    if slot.actor is not None:
        ray.kill(slot.actor)
        slot.actor = None


if TYPE_CHECKING:
    _sampler: type[Sampler] = RemoteSamplers  # let mypy verify the protocol
