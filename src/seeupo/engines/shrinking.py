"""Shrink or undo a change of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def shrinkable(parameters: Mapping[str, Tensor]) -> Iterator[Callable[[float], None]]:
    """Keep a copy of the parameters until the context ends, and yield a function that shrinks their change since then.

    `shrink(factor)` sets them to before + factor * (now - before), in place, so that repeated calls multiply their
    factors and no second copy is needed. A factor of 0 restores them exactly, also from values that are not finite.
    """
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def shrink(factor: float) -> None:
        for name, parameter in parameters.items():
            if factor == 0:
                parameter.copy_(before[name])
            else:
                parameter.sub_(before[name]).mul_(factor).add_(before[name])

    yield shrink
