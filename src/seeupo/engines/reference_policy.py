"""The frozen policy that KL terms compare with."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from seeupo.models.lora.adapters import is_adapter
from seeupo.models.precision import cast_weights
from seeupo.models.scope import ModelScope


class ReferencePolicy:
    """A snapshot of a policy: of all weights, or only of the adapters if the rest is frozen anyway.

    Args:
        adapters: Whether only adapters are trained. Their values are then exchanged for the time of a forward pass.
        dtype: Data type of a copy of all weights; None for the policy's.
    """

    def __init__(self, policy: PreTrainedModel, *, adapters: bool, dtype: torch.dtype | None = None) -> None:
        self.policy = policy
        self.copy: ModelScope | None = None
        self._adapters: dict[str, Tensor] = {}
        if not adapters:
            frozen = copy.deepcopy(policy).requires_grad_(False)
            frozen.eval()
            if dtype is not None:
                cast_weights(frozen, dtype)
            self.copy = ModelScope(frozen)

    def snapshot(self) -> None:
        """Keep the current weights of the policy."""
        if self.copy is None:
            self._adapters = {name: parameter.detach().clone() for name, parameter in self._trained().items()}
        else:
            fill(self.copy.model, dict(self.policy.named_parameters()))

    @contextmanager
    def active(self, policy: ModelScope) -> Iterator[ModelScope]:
        """Provide a module that computes the reference's log-probs; `policy` is the one that is trained."""
        if self.copy is not None:
            yield self.copy
            return
        trained = self._trained()
        current = {name: parameter.detach().clone() for name, parameter in trained.items()}
        fill(self.policy, self._adapters)
        try:
            yield policy
        finally:
            fill(self.policy, current)

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights of the snapshot by name; tied weights appear once."""
        return self._adapters if self.copy is None else {n: p.detach() for n, p in self.copy.model.named_parameters()}

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.policy.named_parameters() if is_adapter(name)}


@torch.no_grad()
def fill(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a module by name. Parameters on the meta device are created."""
    missing: dict[str, nn.Parameter] = {}
    for name, parameter in module.named_parameters():
        if name not in weights:
            continue
        if parameter.is_meta:
            missing[name] = nn.Parameter(weights[name].detach().to(parameter.dtype, copy=True))
        else:
            parameter.copy_(weights[name])
    if missing:
        assign(module, missing)


def assign(module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Replace parameters by name; tied parameters stay tied."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    state: dict[str, nn.Parameter] = {}
    for tied in names.values():
        if values := [parameters[name] for name in tied if name in parameters]:
            state |= dict.fromkeys(tied, values[0])
    module.load_state_dict(state, strict=False, assign=True)
