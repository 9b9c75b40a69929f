"""RMS norms in float64: transformers computes them in float32 regardless of the dtype of the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ExactRMSNorm(nn.Module):
    """RMS norm in the dtype of its input."""

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
