"""Data types of the computation and of stored weights, and the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from seeupo.errors import ModelError, first_line

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
"""Data types of the computation. float16 is left out: its small range would need loss scaling."""


def resolve_device(name: str) -> torch.device:
    """Return a device that works; "auto" is the GPU if PyTorch can use one (CUDA), and the CPU otherwise."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {name!r} cannot be used: {first_line(error)}") from None
    return device


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return the context in which matrix products are computed in `dtype`; None leaves everything as it is."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Change the data type of the weights in place.

    Buffers keep theirs: the frequencies of rotary positions are useless in bfloat16.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
