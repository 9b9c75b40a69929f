"""Distribution of an engine's weights over processes: none, or the ranks of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn


class Sharding(Protocol):
    """Distributes weights. Ranks run the same program on different turns and must make the same calls.

    Attributes:
        ranks: Number of ranks.
        rank: Number of this rank; rank 0 writes the files that are not sharded.
    """

    ranks: int
    rank: int

    def shard(self, module: nn.Module, *, exact: Sequence[nn.Module] = ()) -> None:
        """Distribute the parameters of a module in place; each layer is gathered on its own when it is computed.

        The parts in `exact` are computed in the data type of their weights, without mixed precision.
        """

    def largest(self, count: int) -> int:
        """Return the largest count of all ranks."""

    def full(self, tensor: Tensor) -> Tensor:
        """Return a whole tensor from its shards."""

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return a whole tensor distributed like another one."""


class SingleProcess:
    """All weights are in this process."""

    ranks = 1
    rank = 0

    def shard(self, module: nn.Module, *, exact: Sequence[nn.Module] = ()) -> None:
        """Leave the module as it is."""

    def largest(self, count: int) -> int:
        return count

    def full(self, tensor: Tensor) -> Tensor:
        return tensor

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        return tensor
