"""Train a critic: compute its values and minimize its loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from seeupo.config.optimizer_settings import CriticSettings
from seeupo.engines.batches import Batches
from seeupo.engines.optimizer import ClippedAdamW
from seeupo.engines.reference_policy import fill
from seeupo.engines.sharding import Sharding
from seeupo.models.loading import LoadedPolicy
from seeupo.models.value_head import Critic
from seeupo.protocols import CriticLoss
from seeupo.types import Turn


class LocalCritic:
    """The critic of a LocalEngine, made from a policy without adapters that is not sharded yet."""

    def __init__(self, policy: LoadedPolicy, settings: CriticSettings, sharding: Sharding, batches: Batches) -> None:
        self.settings = settings
        self.sharding = sharding
        self._batches = batches
        self.critic = Critic(policy.model, settings.backbone, policy.autocast)
        self._scope = batches.scope if settings.backbone == "policy" else None  # whose trunk can be used

    def shard(self) -> None:
        """Distribute the weights over the ranks."""
        self.sharding.shard(self.critic, exact=(self.critic.head,))

    @torch.no_grad()
    def restart(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Start over from the policy's weights by their Hugging Face names, with values 0 and a fresh optimizer."""
        for parameter in self.critic.head.parameters():
            parameter.zero_()
        if self.critic.backbone is not None:
            prefix = f"{self.critic.backbone.base_model_prefix}."
            parameters = dict(self.critic.backbone.named_parameters())
            parts = {}
            for full_name, weight in weights:
                name = full_name.removeprefix(prefix)
                if name in parameters:
                    parts[name] = self.sharding.part(weight, parameters[name])
            fill(self.critic.backbone, parts)
        self.trained = dict(self.critic.named_parameters())
        self.optimizer = ClippedAdamW(self.trained, self.settings.optimizer)

    @torch.no_grad()
    def values(self, turns: Sequence[Turn]) -> list[Tensor]:
        """Return values [len(action) + 1] per turn: before each token of the action and after the last, on the CPU."""
        results: list[Tensor] = [torch.empty(0)] * len(turns)
        for batch, real in self._batches.iterate(turns, self._scope):
            before_NL, end_N = self.critic(batch, self._batches.scope)
            if real:
                for member, before, end in zip(batch.members, before_NL, end_N, strict=True):
                    results[member] = torch.cat([before[: len(turns[member].action_ids)], end[None]]).cpu()
        return results

    def step(self, turns: Sequence[Turn], loss: CriticLoss, *, normalizer: float, iteration: int) -> dict[str, float]:
        """Take one optimizer step down the gradient of sum(loss) / normalizer, and return its metrics."""
        self.optimizer.zero_grad()
        total = 0.0
        for batch, real in self._batches.iterate(turns, self._scope):
            values_NL, _ = self.critic(batch, self._batches.scope)
            part = loss(values_NL, [turns[member] for member in batch.members]).sum() if real else 0 * values_NL.sum()
            (part * (self.sharding.ranks / normalizer)).backward()
            total += float(part.detach()) / normalizer
        return {**self.optimizer.step(iteration, None, owner="the critic"), "critic_loss": total}
