"""Checks of tensors. Messages start with the argument's name, show its value, and state what is expected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_shape(name: str, tensor: Tensor, shape: Sequence[int], like: str) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {tuple(shape)}, the shape of {like}")


def check_floating(name: str, tensor: Tensor, dims: int) -> None:
    if not tensor.is_floating_point():
        raise ValueError(f"{name} has dtype {tensor.dtype}: expected a floating-point tensor")
    if tensor.dim() != dims:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {dims} dimension(s)")


def check_finite(name: str, tensor: Tensor) -> None:
    bad = (~torch.isfinite(tensor)).nonzero()
    if len(bad):
        where = tuple(bad[0].tolist())
        raise ValueError(f"{name}[{', '.join(map(str, where))}] = {tensor[where].item()}: expected a finite number")


def check_mask(mask: Tensor, shape: Sequence[int], like: str) -> None:
    if mask.dtype != torch.bool:
        raise ValueError(f"mask has dtype {mask.dtype}: expected torch.bool, True at action tokens")
    check_shape("mask", mask, shape, like)
