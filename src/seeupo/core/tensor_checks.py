"""Checks of tensors. Messages start with the argument's name, show its value, and state what is expected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_shape(name: str, tensor: Tensor, shape: Sequence[int], like: str) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {tuple(shape)}, the shape of {like}")


def check_finite(name: str, tensor: Tensor) -> None:
    bad = (~torch.isfinite(tensor)).nonzero()
    if len(bad):
        where = tuple(bad[0].tolist())
        raise ValueError(f"{name}[{', '.join(map(str, where))}] = {tensor[where].item()}: expected a finite number")
