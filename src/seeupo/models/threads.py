"""The number of PyTorch threads: a rule by the size of the model and no timing, so that equal seeds give equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

SMALL_MODEL = 10_000_000
"""Number of weights below which a model is computed by one thread: its operations take less time than to share them,
and on busy cores each waits for the thread that is served last.
"""


def default_threads(model: nn.Module) -> int:
    """Return the number of threads for a model: one for a small model, otherwise one per core."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    return 1 if weights < SMALL_MODEL else torch.get_num_threads()


@contextmanager
def num_threads(count: int | None) -> Iterator[None]:
    """Use `count` PyTorch threads inside the context; None leaves the number as it is."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
