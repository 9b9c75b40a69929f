"""The critic: a value for every state in which a token of an action was chosen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from seeupo.config.optimizer_settings import Backbone
from seeupo.models.packing.batching import PaddedBatch, action_mask, padded_inputs
from seeupo.models.packing.tree import TreeBatch
from seeupo.models.packing.tree_layers import final_states
from seeupo.models.precision import cast_weights
from seeupo.models.scope import ModelScope
from seeupo.types import Turn


class Critic(nn.Module):
    """A linear value head on a language model.

    Args:
        policy: The policy's model. Its layers are copied for a backbone "own"; `restart` gives them their weights.
        backbone: "own" trains a copy of the policy's layers together with the head; "policy" trains the head only, on
            the hidden states of the policy.
        autocast: Context of the layers, as in `LoadedPolicy`. The head is computed in the data type of its weights.

    The head is initialized to 0, so all values start at 0. All weights are float32, or float64 if the policy is.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        backbone: Backbone,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        super().__init__()
        self._autocast = autocast
        width = int(policy.config.get_text_config().hidden_size)
        dtype = policy.dtype if policy.dtype == torch.float64 else torch.float32
        self.head = nn.Linear(width, 1, device=torch.device("cpu") if policy.device.type == "meta" else policy.device)
        self.head.to(dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.backbone = _copy_layers(policy, dtype) if backbone == "own" else None

    def forward(self, batch: TreeBatch | PaddedBatch, policy: ModelScope) -> tuple[Tensor, Tensor]:
        """Return values [n, L] before each token of the batch's actions, padded with 0, and [n] after the last."""
        compute = partial(_action_states, batch=batch)
        with self._autocast():
            if self.backbone is not None:
                before_NLH, mask_NL, end_NH = compute(self.backbone)
            else:
                with torch.no_grad():
                    before_NLH, mask_NL, end_NH = policy(compute)
        before_NL: Tensor = self.head(before_NLH.to(self.head.weight.dtype))[:, :, 0]
        end_N: Tensor = self.head(end_NH.to(self.head.weight.dtype)).flatten()
        return before_NL.where(mask_NL, 0), end_N


def _copy_layers(policy: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    layers = copy.deepcopy(cast("PreTrainedModel", policy.base_model))
    cast_weights(layers, dtype)
    if policy.is_gradient_checkpointing:
        layers.gradient_checkpointing_enable()
        layers.train()
    return layers.requires_grad_(True)


def _action_states(model: PreTrainedModel, batch: TreeBatch | PaddedBatch) -> tuple[Tensor, Tensor, Tensor]:
    if isinstance(batch, PaddedBatch):
        return _padded_action_states(model, batch.rows)
    states = final_states(model, batch, torch.cat([batch.predictors.flatten(), batch.lasts]))
    before, end = states[: batch.predictors.numel()], states[batch.predictors.numel() :]
    return before.view(*batch.predictors.shape, -1), batch.mask.to(model.device), end


def _padded_action_states(model: PreTrainedModel, turns: Sequence[Turn]) -> tuple[Tensor, Tensor, Tensor]:
    states = model.base_model(**padded_inputs(turns, model.device)).last_hidden_state
    before, end = [], []
    for row, turn in zip(states, turns, strict=True):
        action = row[len(turn.prompt_ids) - 1 :][: len(turn.action_ids) + 1]
        before.append(action[:-1])
        end.append(action[-1])
    mask = action_mask(turns, model.device)
    return nn.utils.rnn.pad_sequence(before, batch_first=True), mask, torch.stack(end)
