"""The critic: a value for every state in which a token of an action was chosen."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from seeupo.core import length_mask
from seeupo.models.adapters import merge_adapters
from seeupo.models.batching import PaddedBatch
from seeupo.models.logprobs import tree_states
from seeupo.models.tree import TreeBatch
from seeupo.types import Turn

Backbone = Literal["own", "policy"]


class Critic(nn.Module):
    """A linear value head on a language model.

    Args:
        policy: Model whose weights the critic starts from.
        backbone: "own" trains a copy of the policy's layers together with the head; "policy" trains the head only, on
            the hidden states of the policy.

    The head is initialized to 0, so all values start at 0.
    """

    def __init__(self, policy: PreTrainedModel, backbone: Backbone) -> None:
        super().__init__()
        width = int(policy.config.get_text_config().hidden_size)
        self.head = nn.Linear(width, 1, device=policy.device, dtype=policy.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.backbone = _copy_layers(policy) if backbone == "own" else None
        # In a list, so that the policy's weights are not registered as the critic's.
        self._model: list[PreTrainedModel] = [policy if self.backbone is None else self.backbone]

    def forward(self, batch: TreeBatch | PaddedBatch) -> tuple[Tensor, Tensor]:
        """Return values [n, L] before each token of the batch's actions, padded with 0, and [n] after the last."""
        model = self._model[0]
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.backbone is not None):
            before_NLH, mask_NL, end_NH = (
                _tree_action_states(model, batch)
                if isinstance(batch, TreeBatch)
                else _padded_action_states(model, batch.rows)
            )
        before_NL: Tensor = self.head(before_NLH)[:, :, 0]
        end_N: Tensor = self.head(end_NH)[:, 0]
        return before_NL.where(mask_NL, 0), end_N


def _copy_layers(policy: PreTrainedModel) -> PreTrainedModel:
    """Return a trainable copy of the policy's layers, adapters merged."""
    plain = merge_adapters(policy)
    layers = cast("PreTrainedModel", plain.base_model)
    layers = copy.deepcopy(layers) if plain is policy else layers
    if policy.is_gradient_checkpointing:
        layers.gradient_checkpointing_enable()
        layers.train()
    return layers.requires_grad_(True)


def _tree_action_states(model: PreTrainedModel, batch: TreeBatch) -> tuple[Tensor, Tensor, Tensor]:
    states = tree_states(model, batch)
    return states[batch.predictors.to(model.device)], batch.mask.to(model.device), states[batch.lasts.to(model.device)]


def _padded_action_states(model: PreTrainedModel, turns: Sequence[Turn]) -> tuple[Tensor, Tensor, Tensor]:
    ids = [torch.tensor(turn.prompt_ids + turn.action_ids) for turn in turns]
    seen = length_mask(torch.tensor([len(row) for row in ids])).long()
    states = model.base_model(
        input_ids=nn.utils.rnn.pad_sequence(ids, batch_first=True).to(model.device),
        attention_mask=seen.to(model.device),
        use_cache=False,
    ).last_hidden_state
    before, end = [], []
    for row, turn in zip(states, turns, strict=True):
        action = row[len(turn.prompt_ids) - 1 :][: len(turn.action_ids) + 1]
        before.append(action[:-1])
        end.append(action[-1])
    mask = length_mask(torch.tensor([len(turn.action_ids) for turn in turns])).to(model.device)
    return nn.utils.rnn.pad_sequence(before, batch_first=True), mask, torch.stack(end)
