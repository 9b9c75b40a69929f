"""Radix tree of prompts: keys and values of every distinct prefix, each computed and stored once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from seeupo.utils.sequences import common_prefix_length


@dataclass(eq=False)
class Segment:
    """A run of tokens that prompts share, with their keys and values: [Hkv, S, D] per layer.

    A prompt is the chain of segments from the root, which is empty, to the segment that it ends with.

    Attributes:
        adapter: Adapter that computes its keys and values, of a policy with one adapter per turn; otherwise 0.
        number: Order of creation; chains of numbers sort prompts so that those with common segments are neighbors.
        used: The tree's clock when the segment was last part of an inserted prompt.
    """

    adapter: int
    number: int
    tokens: tuple[int, ...]
    parent: Segment | None
    start: int
    used: int = 0
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    children: dict[int, Segment] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def chain(self) -> list[Segment]:
        """Return the segments from the first one below the root to this one."""
        segments, node = [], self
        while node.parent is not None:
            segments.append(node)
            node = node.parent
        return segments[::-1]

    def order(self) -> tuple[int, ...]:
        """Return a key that sorts rows by adapter and then so that those with common segments are neighbors."""
        return (self.adapter, *(segment.number for segment in self.chain()))

    def starts(self, tokens: Sequence[int]) -> bool:
        """Return whether tokens start with the tokens of the chain."""
        return all(tuple(tokens[node.start : node.end]) == node.tokens for node in self.chain())


class PrefixTree:
    """The segments of all prompts, below a root for each adapter. Its clock counts inserted prompts."""

    def __init__(self) -> None:
        self._roots: dict[int, Segment] = {}
        self.tokens = 0
        self.clock = 0
        self._created = 0

    def insert(self, tokens: Sequence[int], adapter: int = 0) -> Segment:
        """Return the segment that a prompt ends with; new segments have no keys and values yet."""
        self.clock += 1
        node = self._roots.setdefault(adapter, Segment(adapter, 0, (), None, 0))
        while node.end < len(tokens):
            child = node.children.get(tokens[node.end])
            if child is None:
                child = self._create(tuple(tokens[node.end :]), node)
                self.tokens += len(child.tokens)
            else:
                common = common_prefix_length(child.tokens, tokens[child.start :])
                if common < len(child.tokens):
                    child = self._split(child, common)
            node = child
            node.used = self.clock
        return node

    def least_used(self, needed: set[Segment]) -> Segment | None:
        """Return the least recently used segment that can be removed: without children and not among the needed."""
        ends = [segment for segment in self._segments() if not segment.children and segment not in needed]
        return min(ends, key=lambda segment: segment.used, default=None)

    def remove(self, segment: Segment) -> None:
        """Remove a segment without children."""
        assert segment.parent is not None
        del segment.parent.children[segment.tokens[0]]
        self.tokens -= len(segment.tokens)

    def _create(self, tokens: tuple[int, ...], parent: Segment) -> Segment:
        self._created += 1
        segment = Segment(parent.adapter, self._created, tokens, parent, parent.end)
        parent.children[tokens[0]] = segment
        return segment

    def _split(self, segment: Segment, length: int) -> Segment:
        """Move the first tokens of a segment into a new parent and return it; the segment keeps the others."""
        assert segment.parent is not None
        upper = self._create(segment.tokens[:length], segment.parent)
        upper.children[segment.tokens[length]] = segment
        segment.parent = upper
        segment.tokens = segment.tokens[length:]
        segment.start = upper.end
        for name in ("keys", "values"):
            tables = getattr(segment, name)
            setattr(upper, name, [table[:, :length].clone() for table in tables])
            setattr(segment, name, [table[:, length:].clone() for table in tables])
        return upper

    def _segments(self) -> Iterator[Segment]:
        waiting = [child for root in self._roots.values() for child in root.children.values()]
        while waiting:
            segment = waiting.pop()
            yield segment
            waiting += segment.children.values()
