"""Local sampler for a policy with one adapter per turn."""

from __future__ import annotations

from seeupo.engines.samplers.local import CACHE_BYTES, LocalSampler
from seeupo.engines.samplers.sampling import copy_weights
from seeupo.models.loading import LoadedPolicy
from seeupo.models.lora.turn_adapters import turn_adapters
from seeupo.types import Completion, GenerationRequest, WeightSource


class TurnAdapterSampler:
    """Samples each turn with its adapter; requests of all turns are sampled at the same time.

    The weights of an adapter are read once per step for all rows that it samples, in a batch of their own. Keys and
    values depend on the adapter, so each has its own prefixes, and an episode's context is computed again when its next
    turn has another adapter.

    The arguments are those of LocalSampler.
    """

    def __init__(
        self, policy: LoadedPolicy, *, training: bool = True, max_rows: int = 64, speculation: bool = True
    ) -> None:
        adapters = turn_adapters(policy.model)
        assert adapters is not None
        self.policy, self.adapters, self.version = policy, adapters, 0
        self._samplers = [
            LocalSampler(
                policy,
                training=training,
                max_rows=max_rows,
                speculation=speculation,
                cache_bytes=CACHE_BYTES // adapters.count,
                adapter=adapter,
            )
            for adapter in range(adapters.count)
        ]

    @property
    def prefilled_tokens(self) -> int:
        """Number of prompt tokens computed so far."""
        return sum(sampler.prefilled_tokens for sampler in self._samplers)

    def submit(self, request: GenerationRequest) -> None:
        if request.agent is None:
            raise ValueError(f"request {request.id!r} names no turn; the policy has one adapter per turn. Set agent.")
        self._samplers[self.adapters.of_turn(request.agent)].submit(request)

    def poll(self) -> list[Completion]:
        """Run one forward pass over the rows of each adapter, and return the completions that have finished."""
        return [completion for sampler in self._samplers for completion in sampler.poll()]

    def sync(self, engine: WeightSource, version: int) -> None:
        for sampler in self._samplers:
            sampler.check_idle("weights cannot change")
        copy_weights(self.policy.model, engine)
        for sampler in self._samplers:
            sampler.record_sync(version)
        self.version = version

    def release(self) -> None:
        for sampler in self._samplers:
            sampler.release()
