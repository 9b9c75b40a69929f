"""The body of a Ray actor with a sampler, and weights in Ray's object store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from seeupo.distributed.vllm_sampler import CHUNK_BYTES, chunks
from seeupo.protocols import Sampler, WeightSource
from seeupo.types import Completion, GenerationRequest

FETCH_SECONDS = 300.0
"""Time limit for weights or completions to arrive from another node."""


class SamplerActor:
    """The body of a Ray actor with a sampler, made by a picklable function."""

    def __init__(self) -> None:
        self._sampler: Any = None
        self._unfinished: set[str] = set()

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

    def work(self, requests: Sequence[GenerationRequest], cancelled: Sequence[str], seconds: float) -> list[Completion]:
        """Drop the cancelled requests, and sample until one of the others has finished or the time is over."""
        self._sampler.cancel(cancelled)
        self._unfinished.difference_update(cancelled)
        for request in requests:
            self._sampler.submit(request)
            self._unfinished.add(request.id)
        finished: list[Completion] = []
        end = time.monotonic() + seconds
        while self._unfinished and not finished and time.monotonic() < end:
            finished = self._sampler.poll()
        self._unfinished.difference_update(completion.id for completion in finished)
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


def store_weights(engine: WeightSource) -> list[Any]:
    """Put an engine's weights into Ray's object store, in chunks, and return references to them."""
    import ray

    on_cpu = ((name, weight.detach().cpu()) for name, weight in engine.weights())
    return [ray.put(chunk) for chunk in chunks(on_cpu, CHUNK_BYTES)]
