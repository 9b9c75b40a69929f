"""Train a critic: compute its values and minimize its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from seeupo.core.checks import OptionError, check_choice
from seeupo.engines.optimizer import Optimizer, OptimizerSettings
from seeupo.models.batching import PaddedBatch
from seeupo.models.critic import Backbone, Critic
from seeupo.models.tree import TreeBatch
from seeupo.types import CriticLoss, Turn

Pack = Callable[[Sequence[Turn]], Iterable[TreeBatch | PaddedBatch]]
WEIGHTS = "critic.safetensors"


@dataclass(frozen=True, kw_only=True)
class CriticOptimizerSettings(OptimizerSettings):
    """Optimizer settings of the critic.

    Attributes:
        trainable: Always empty, because all weights of the critic are trained.
    """

    learning_rate: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class CriticSettings:
    """Settings of the critic.

    Attributes:
        backbone: "own" trains a separate copy of the policy's layers; "policy" trains only a value head on the hidden
            states of the policy.
    """

    backbone: Backbone = "own"
    optimizer: CriticOptimizerSettings = field(default_factory=CriticOptimizerSettings)

    def __post_init__(self) -> None:
        check_choice("backbone", self.backbone, get_args(Backbone))
        if self.optimizer.trainable:
            expected = "an empty list, because all weights of the critic are trained"
            raise OptionError("optimizer.trainable", self.optimizer.trainable, expected)


class LocalCritic:
    """The critic of a LocalEngine."""

    def __init__(self, policy: PreTrainedModel, settings: CriticSettings) -> None:
        self.settings = settings
        self.critic = Critic(policy, settings.backbone)
        self._trained = dict(self.critic.named_parameters())
        self._optimizer = Optimizer(self._trained, settings.optimizer)

    @torch.no_grad()
    def values(self, turns: Sequence[Turn], pack: Pack) -> list[Tensor]:
        """Return values [len(action) + 1] per turn: before each token of the action and after the last, on the CPU."""
        results: list[Tensor] = [torch.empty(0)] * len(turns)
        for batch in pack(turns):
            for member, before, end in zip(batch.members, *self.critic(batch), strict=True):
                results[member] = torch.cat([before[: len(turns[member].action_ids)], end[None]]).cpu()
        return results

    def step(
        self, turns: Sequence[Turn], loss: CriticLoss, pack: Pack, *, normalizer: float, iteration: int
    ) -> dict[str, float]:
        """Take one optimizer step down the gradient of sum(loss) / normalizer, and return its metrics."""
        self._optimizer.zero_grad()
        total = 0.0
        for batch in pack(turns):
            values_NL, _ = self.critic(batch)
            part = loss(values_NL, [turns[member] for member in batch.members]).sum() / normalizer
            part.backward()
            total += float(part.detach())
        return {**self._optimizer.step(iteration, None, owner="the critic"), "critic_loss": total}

    def save(self, path: Path) -> dict[str, Any]:
        """Write the weights and return the optimizer state."""
        path.mkdir(parents=True, exist_ok=True)
        save_file({name: p.detach().contiguous() for name, p in self._trained.items()}, path / WEIGHTS)
        return {"moments": self._optimizer.state()}

    def load(self, path: Path, state: dict[str, Any]) -> None:
        """Restore the weights and the optimizer state."""
        file = path / WEIGHTS
        if not file.exists():
            raise ValueError(f"{path} has no critic; expected the checkpoint of an engine with a critic")
        weights = load_file(file)
        if weights.keys() != self._trained.keys():
            raise ValueError(f"{path} is from a different critic; expected backbone={self.settings.backbone!r}")
        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(weights[name])
        self._optimizer.load_state(state["moments"])
