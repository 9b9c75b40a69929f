"""The trunk of a model: its layers below the first one that is trained.

A token's hidden states depend on the tokens before it only, and in the trunk they stay the same while the layers above
are trained. So they are computed once for many turns, and every later pass over some of these turns starts above.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from seeupo.models.packing.tree import Ints, LayerInput, TreeBatch
from seeupo.models.packing.tree_layers import has_known_layers
from seeupo.types import Turn

Tokens = tuple[tuple[int, ...], tuple[int, ...]]


def trunk_layers(model: PreTrainedModel, trained: Iterable[nn.Parameter]) -> int:
    """Return the number of layers below the first one with a trained parameter, at most all but the last.

    It is 0 if the input embeddings are trained, also as an output head that is tied to them.
    """
    if not has_known_layers(model):
        return 0
    base: Any = model.base_model
    layers = base.layers[: base.config.num_hidden_layers]
    remaining = {id(parameter) for parameter in trained}
    first = len(layers)
    for index, part in enumerate([*layers, base.norm]):
        parameters = {id(parameter) for parameter in part.parameters()}
        first = min(first, index) if parameters & remaining else first
        remaining -= parameters
    head: Any = model.get_output_embeddings()
    if head.weight is not base.embed_tokens.weight:
        remaining -= {id(parameter) for parameter in head.parameters()}
    return min(first, len(layers) - 1) if not remaining else 0


class TrunkCache:
    """Hidden states after the trunk, by the tokens of turns.

    Args:
        layers: Number of layers of the trunk, which is the index of the layer that gets these states.
        max_bytes: Maximum size of the states.
    """

    def __init__(self, layers: int, max_bytes: int) -> None:
        self.layers, self.max_bytes = layers, max_bytes
        self._states: list[Tensor] = []
        self._turns: dict[Tokens, tuple[int, Ints]] = {}  # number of the batch, rows [len] in its states
        self._kept = 0  # number of the first batches that stay

    def keep(self) -> None:
        """Keep what is stored now when everything else is released."""
        self._kept = len(self._states)

    def release(self) -> None:
        """Release everything that is not kept."""
        del self._states[self._kept :]
        self._turns = {tokens: place for tokens, place in self._turns.items() if place[0] < self._kept}

    @property
    def used_bytes(self) -> int:
        """Size of the states that are stored."""
        return sum(states.nbytes for states in self._states)

    def __contains__(self, turn: Turn) -> bool:
        return _tokens(turn) in self._turns

    def fitting(self, batches: Sequence[TreeBatch], token_bytes: int) -> list[TreeBatch]:
        """Return the first batches whose states, of `token_bytes` per token, do not exceed the limit."""
        room, fitting = self.max_bytes - self.used_bytes, []
        for batch in batches:
            room -= batch.input_ids.numel() * token_bytes
            if room < 0:
                break
            fitting.append(batch)
        return fitting

    def add(self, batch: TreeBatch, turns: Sequence[Turn], states: Tensor) -> None:
        """Store the states [B, N, H] of a batch, whose members are indices of `turns`."""
        number = len(self._states)
        self._states.append(states.detach().flatten(0, 1))
        for member, path in zip(batch.members, batch.paths, strict=True):
            self._turns[_tokens(turns[member])] = number, path

    def attach(self, batch: TreeBatch, turns: Sequence[Turn]) -> TreeBatch:
        """Return a batch of stored turns that starts above the trunk."""
        count = batch.input_ids.numel()
        sources, rows = np.full(count, -1), np.zeros(count, dtype=np.int64)
        for member, path in zip(batch.members, batch.paths, strict=True):
            sources[path], rows[path] = self._turns[_tokens(turns[member])]
        first = self._states[int(sources.max())]
        states = first.new_zeros(count, first.shape[1])  # padding stays 0
        for source in np.unique(sources[sources >= 0]).tolist():
            (places,) = np.nonzero(sources == source)
            stored_states = self._states[source]
            index = torch.from_numpy(rows[places]).to(stored_states.device)
            states[torch.from_numpy(places).to(states.device)] = stored_states[index]
        return replace(batch, start=LayerInput(self.layers, states.view(*batch.input_ids.shape, -1)))


def without_states(batch: TreeBatch, model: PreTrainedModel, layer: int) -> TreeBatch:
    """Return a batch that starts at a layer with hidden states 0, to take part in the computation of other ranks."""
    width = int(model.config.get_text_config().hidden_size)
    states = torch.zeros(*batch.input_ids.shape, width, dtype=model.dtype, device=model.device)
    return replace(batch, start=LayerInput(layer, states))


def _tokens(turn: Turn) -> Tokens:
    return turn.prompt_ids, turn.action_ids
