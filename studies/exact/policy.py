"""Policies over the nodes of an enumerated problem."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor


class Policy(Protocol):
    """Maps trainable parameters to log pi at every node."""

    def log_probs(self) -> Tensor:
        """Return log pi(token | node) [nodes, V], differentiable."""

    def parameters(self) -> dict[str, Tensor]:
        """Return the tensors that an update changes in place."""


class TablePolicy:
    """Table policy with one distribution per row.

    `rows` [nodes] maps nodes to rows; nodes with the same row share its parameters. By default every node has a row:
    separate parameters per turn and history, as the proofs assume.
    """

    def __init__(self, logits: Tensor, rows: Tensor | None = None) -> None:
        self.logits = logits.clone().requires_grad_()
        self.rows = torch.arange(len(logits)) if rows is None else rows

    def log_probs(self) -> Tensor:
        return self.logits.log_softmax(1)[self.rows]

    def parameters(self) -> dict[str, Tensor]:
        return {"logits": self.logits}


class NetworkPolicy:
    """Network with one hidden layer over fixed features [nodes, F]; all nodes share all parameters."""

    def __init__(self, features: Tensor, num_tokens: int, *, hidden: int, generator: torch.Generator) -> None:
        def normal(fan_in: int, fan_out: int) -> Tensor:
            weights = torch.randn(fan_in, fan_out, generator=generator, dtype=features.dtype)
            return (weights / math.sqrt(fan_in)).requires_grad_()

        self.features = features
        self.inner = normal(features.shape[1], hidden)
        self.outer = normal(hidden, num_tokens)

    def log_probs(self) -> Tensor:
        logits = (self.features @ self.inner).tanh() @ self.outer
        return logits.log_softmax(1)

    def parameters(self) -> dict[str, Tensor]:
        return {"inner": self.inner, "outer": self.outer}
