"""Data types of the computation and of stored weights, and the device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Change the data type of the weights in place.

    Buffers keep theirs: the frequencies of rotary positions are useless in bfloat16.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


class ExactRMSNorm(nn.Module):
    """RMS norm in the dtype of its input: transformers computes them in float32, also for a float64 model."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = eps

    def forward(self, hidden: Tensor) -> Tensor:
        return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def use_exact_norms(model: nn.Module) -> None:
    """Replace the RMS norms of a Llama- or Qwen-like model in place; parameters keep their names."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ in ("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"):
                assert isinstance(child.weight, nn.Parameter)
                setattr(module, name, ExactRMSNorm(child.weight, float(child.variance_epsilon)))  # type: ignore[arg-type]
