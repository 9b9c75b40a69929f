"""Run computations on a model inside the forward pass of one module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn
from transformers import PreTrainedModel

R = TypeVar("R")


class ModelScope(nn.Module):
    """A model whose parts are used one by one, such as its layers and then its output head.

    A sharded model gathers and releases weights in hooks of its forward pass, so all use of the weights must happen
    within one. `scope(compute)` is that forward pass.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[PreTrainedModel], R]) -> R:
        """Return compute(model): tensors, or a tuple of them, in which hooks can find what a backward pass needs."""
        return compute(self.model)
