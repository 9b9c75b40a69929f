"""Micro-batches of an engine: turns are checked, packed, aligned among ranks, and computed from the trunk on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from seeupo.engines.sharding import Sharding
from seeupo.models.loading import LoadedPolicy
from seeupo.models.lora.turn_adapters import activate, turn_adapters
from seeupo.models.packing.batching import PaddedBatch, micro_batches
from seeupo.models.packing.tree import TreeBatch, pack_batches
from seeupo.models.packing.tree_layers import states_below
from seeupo.models.packing.trunk import TrunkCache, trunk_layers, without_states
from seeupo.models.scope import ModelScope
from seeupo.types import Turn

FILLER = Turn("filler", 0, (0,), (0,))
"""Turn of the passes in which a rank takes part without turns of its own."""
TRUNK_BYTES = 4 * 2**30
"""Default limit of the hidden states that are kept."""


class Batches:
    """Makes the micro-batches of an engine; arguments as in `LocalEngine`.

    The trunk is computed in the policy's `scope`. Turns whose hidden states do not fit are computed in full.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        scope: ModelScope,
        sharding: Sharding,
        *,
        row_tokens: int,
        batch_tokens: int,
        trunk_bytes: int,
    ) -> None:
        self.policy = policy
        self.scope = scope
        self.sharding = sharding
        self.row_tokens = row_tokens
        self.batch_tokens = batch_tokens
        self.trunk_bytes = trunk_bytes
        self.trunk: TrunkCache | None = None
        self._shares_trunk: dict[int, bool] = {}

    def reset(self, trained: Iterable[nn.Parameter]) -> None:
        """Find the trunk below these parameters, after a change of what is trained or of the weights of the trunk."""
        layers = trunk_layers(self.policy.model, trained) if self.policy.packing == "tree" and self.trunk_bytes else 0
        self.trunk = TrunkCache(layers, self.trunk_bytes) if layers else None
        self._shares_trunk = {}

    def release(self) -> None:
        """Drop the hidden states of earlier turns that are not kept."""
        if self.trunk is not None:
            self.trunk.release()

    def keep(self, turns: Sequence[Turn]) -> None:
        """Compute the trunk of turns, as far as it fits, and keep it until `reset`, besides what is kept already."""
        if self.trunk is not None:
            self._check(turns)
            self.trunk.release()
            self._fill(turns)
            self.trunk.keep()

    def iterate(
        self, turns: Sequence[Turn], scope: ModelScope | None = None
    ) -> Iterator[tuple[TreeBatch | PaddedBatch, bool]]:
        """Yield batches that `scope` computes, as many on every rank, and whether each is real.

        `members` are indices of `turns`. A batch that is not real is a filler, on ranks that have fewer than others.
        Without a scope, or if its trunk differs from the policy's, batches are computed in full. With one adapter per
        turn, a batch has turns of one adapter, which is active until the next batch.
        """
        self._check(turns)
        adapters = turn_adapters(self.policy.model)
        if adapters is None:
            yield from self._iterate(turns, range(len(turns)), scope)
            return
        for adapter in range(adapters.count):
            numbers = [n for n, turn in enumerate(turns) if adapters.of_turn(turn.index, turn.agent_role) == adapter]
            if numbers or self.sharding.ranks > 1:  # other ranks may have turns of this adapter
                activate(self.policy.model, adapter)
                yield from self._iterate(turns, numbers, scope)

    def _iterate(
        self, turns: Sequence[Turn], numbers: Sequence[int], scope: ModelScope | None
    ) -> Iterator[tuple[TreeBatch | PaddedBatch, bool]]:
        """Yield the batches of the turns with these indices."""
        if self.trunk is not None and scope is not None and self._has_same_trunk(scope):
            self._fill(turns)
            stored = [number for number in numbers if turns[number] in self.trunk]
            numbers = [number for number in numbers if turns[number] not in self.trunk]
            for batch, real in self._aligned(turns, stored):
                assert isinstance(batch, TreeBatch)
                if real:
                    yield self.trunk.attach(batch, turns), True
                else:
                    yield without_states(batch, self.policy.model, self.trunk.layers), False
        yield from self._aligned(turns, numbers)

    def _aligned(self, turns: Sequence[Turn], numbers: Sequence[int]) -> Iterator[tuple[TreeBatch | PaddedBatch, bool]]:
        packing = self.policy.packing
        pack = partial(micro_batches, packing=packing, row_tokens=self.row_tokens, batch_tokens=self.batch_tokens)
        batches = pack([turns[number] for number in numbers])
        fillers = self.sharding.largest(len(batches)) - len(batches)  # all ranks compute it before their first batch
        for batch in batches:
            yield replace(batch, members=[numbers[member] for member in batch.members]), True
        for _ in range(fillers):
            yield pack([FILLER])[0], False

    @torch.no_grad()
    def _fill(self, turns: Sequence[Turn]) -> None:
        """Compute the trunk of the turns that are not stored, as far as they fit."""
        assert self.trunk is not None
        missing = [turn for turn in turns if turn not in self.trunk]
        model = self.policy.model
        token_bytes = int(model.config.get_text_config().hidden_size) * model.dtype.itemsize
        pack = partial(pack_batches, row_tokens=self.row_tokens, batch_tokens=self.batch_tokens)
        batches = self.trunk.fitting(pack(missing), token_bytes)
        fillers = pack([FILLER]) * (self.sharding.largest(len(batches)) - len(batches))
        for number, batch in enumerate([*batches, *fillers]):
            with self.policy.autocast():
                states = self.scope(partial(states_below, batch=batch, layer=self.trunk.layers))
            if number < len(batches):
                self.trunk.add(batch, missing, states)

    def _has_same_trunk(self, scope: ModelScope) -> bool:
        """Return whether a model has the policy's trunk: it is the policy, or a copy that has equal weights there."""
        if scope is self.scope:
            return True
        if id(scope) not in self._shares_trunk:
            assert self.trunk is not None
            layers = self.trunk.layers
            pairs = zip(_trunk_weights(self.scope.model, layers), _trunk_weights(scope.model, layers), strict=True)
            different = any(one.dtype != other.dtype or not torch.equal(one, other) for one, other in pairs)
            self._shares_trunk[id(scope)] = not self.sharding.largest(int(different))
        return self._shares_trunk[id(scope)]

    def _check(self, turns: Sequence[Turn]) -> None:
        """Raise before any computation if the model cannot process a turn."""
        vocab_size = int(self.policy.model.config.get_text_config().vocab_size)
        context_length = self.policy.context_length
        for turn in turns:
            length = len(turn.prompt_ids) + len(turn.action_ids)
            if length > context_length:
                raise ValueError(f"turn {turn.key} has {length} tokens; the context is {context_length}")
            highest = max(max(turn.prompt_ids, default=0), max(turn.action_ids, default=0))
            if highest >= vocab_size:
                raise ValueError(f"turn {turn.key} contains token {highest}; the vocabulary has {vocab_size}")


def _trunk_weights(model: PreTrainedModel, layers: int) -> list[Tensor]:
    base: Any = model.base_model
    weights = [base.embed_tokens.weight, *base.layers[:layers].parameters()]
    return [weight.to_local() if hasattr(weight, "to_local") else weight for weight in weights]  # a rank's own part
