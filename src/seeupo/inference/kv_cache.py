"""Keys and values of the local sampler: shared segments of prompts, private rows, and what a step adds to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seeupo.inference.decoder import Decoder
from seeupo.inference.prefix_tree import Segment

SHORT_TOKENS = 32
"""Length up to which the new tokens of a row are computed together with those of others, padded to the longest."""


@dataclass(eq=False)
class Context:
    """The computed part of a sequence: shared segments of a prompt, then private tokens with their keys and values.

    While the sequence is in the batch, its private keys and values are in its row of the cache; otherwise they are in
    `keys` and `values`, [layers, S, Hkv, D].

    Attributes:
        segment: The last shared segment; the chain from the root to it precedes the private tokens.
        used: The clock of the prefix tree when the sequence left the batch.
    """

    segment: Segment
    tokens: list[int]
    used: int = 0
    keys: Tensor = field(default_factory=lambda: torch.empty(0))
    values: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def length(self) -> int:
        return self.segment.end + len(self.tokens)


class RowCache:
    """Private keys and values of the rows, [layers, 1 + S, rows, Hkv, D]; the capacity S grows by half.

    A step reads the first tokens of all rows. They are neighbors in this order; with the rows first, attention to them
    took up to twice as long. The first place of every row is never filled: its key and value are 0, and its score
    stands for the row's shared tokens (`RowAttention`). So the private token of position p is at place 1 + p.

    Attributes:
        bytes_per_token: Size of what is kept of a token.
        repeat: Number of query heads that share keys and values.
    """

    def __init__(self, decoder: Decoder, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (decoder.num_layers, 1 + 64, rows, decoder.kv_heads, decoder.head_dim)
        self.repeat = decoder.query_heads // decoder.kv_heads
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.bytes_per_token = 2 * self.keys[:, 0, 0].nbytes

    @property
    def capacity(self) -> int:
        return self.keys.shape[1] - 1

    def reserve(self, length: int) -> None:
        have = self.capacity
        if length > have:
            more = max(length, have + have // 2) - have
            self.keys, self.values = (
                torch.nn.functional.pad(table, (0, 0) * 3 + (0, more)) for table in (self.keys, self.values)
            )

    def insert(self, row: int, context: Context) -> None:
        length = len(context.tokens)
        self.reserve(length + 1)
        if length:
            for table, kept in ((self.keys, context.keys), (self.values, context.values)):
                table[:, 1 : 1 + length, row] = kept[:, :length]

    def new_tokens(self, row: int, context: Context, tokens: Sequence[int]) -> NewTokens:
        """Make room for new tokens of a row, and return them."""
        self.reserve(len(context.tokens) + len(tokens))
        return NewTokens(self, row, context, tokens)

    def extract(self, row: int, context: Context) -> None:
        here = slice(1, 1 + len(context.tokens))
        context.keys, context.values = (table[:, here, row].clone() for table in (self.keys, self.values))

    def move(self, source: int, target: int, length: int) -> None:
        for table in (self.keys, self.values):
            table[:, 1 : 1 + length, target] = table[:, 1 : 1 + length, source]


@dataclass
class NewSegment:
    """A segment to compute."""

    segment: Segment

    @property
    def tokens(self) -> Sequence[int]:
        return self.segment.tokens

    @property
    def positions(self) -> range:
        return range(self.segment.start, self.segment.end)

    @property
    def adapter(self) -> int:
        return self.segment.adapter

    def store(self, layer: int, keys: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Store new keys and values [Hkv, S, D], and return all that the tokens attend to."""
        self.segment.keys.append(keys.contiguous())
        self.segment.values.append(values.contiguous())
        return [(segment.keys[layer], segment.values[layer]) for segment in self.segment.chain()]


@dataclass
class NewTokens:
    """Tokens to compute in a row, after those of its context. The first of them has the private position `start`."""

    cache: RowCache
    row: int
    context: Context
    tokens: Sequence[int]

    def __post_init__(self) -> None:
        self.start = len(self.context.tokens)
        self.positions = range(self.context.length, self.context.length + len(self.tokens))

    @property
    def adapter(self) -> int:
        return self.context.segment.adapter

    @property
    def is_short(self) -> bool:
        return len(self.tokens) <= SHORT_TOKENS

    def store(self, layer: int, keys: Tensor, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Store new keys and values [Hkv, S, D], and return all that the tokens attend to."""
        end = self.start + len(self.tokens)
        row_keys = self.cache.keys[layer, 1 : 1 + end, self.row].transpose(0, 1)
        row_values = self.cache.values[layer, 1 : 1 + end, self.row].transpose(0, 1)
        row_keys[:, self.start :] = keys
        row_values[:, self.start :] = values
        shared = [(segment.keys[layer], segment.values[layer]) for segment in self.context.segment.chain()]
        return [*shared, (row_keys, row_values)]


class CopiedSegment:
    """A short segment that rows hold as private tokens, because joint attention to it would cost more than it saves."""

    def __init__(self, cache: RowCache, segment: Segment, start: int, rows: Sequence[int]) -> None:
        self.cache, self.segment = cache, segment
        self.places = slice(1 + start, 1 + start + len(segment.tokens))
        self.rows = torch.tensor(rows, device=cache.keys.device)

    def copy(self, layer: int) -> None:
        self.cache.keys[layer][self.places, self.rows] = self.segment.keys[layer].transpose(0, 1)[:, None]
        self.cache.values[layer][self.places, self.rows] = self.segment.values[layer].transpose(0, 1)[:, None]
