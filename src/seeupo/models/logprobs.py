"""Log-probs of sampled actions under a causal language model, with gradients.

Two implementations give the same numbers: `tree_logprobs` computes every distinct token once; `padded_logprobs` uses
one padded row per turn, for tests and for models that cannot be tree-packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from seeupo.core import length_mask
from seeupo.models.packing.batching import PaddedBatch
from seeupo.models.packing.tree import TreeBatch
from seeupo.models.packing.tree_layers import final_states
from seeupo.types import Turn

PROJECTION_BYTES = 256 * 2**20
"""Maximum size of the logits that are computed at once."""


@dataclass(frozen=True)
class ActionLogProbs:
    """Log-probs and optional entropies [n, L] of action tokens, with a mask [n, L]; padding holds 0."""

    logprobs: Tensor
    entropies: Tensor | None
    mask: Tensor


def action_logprobs(
    model: PreTrainedModel, batch: TreeBatch | PaddedBatch, *, temperature: float = 1.0, entropies: bool = False
) -> ActionLogProbs:
    """Return log-probs of the actions of a batch, in the order of `batch.members`."""
    if isinstance(batch, TreeBatch):
        return tree_logprobs(model, batch, temperature=temperature, entropies=entropies)
    return padded_logprobs(model, batch.rows, temperature=temperature, entropies=entropies)


def tree_logprobs(
    model: PreTrainedModel, batch: TreeBatch, *, temperature: float = 1.0, entropies: bool = False
) -> ActionLogProbs:
    """Return log-probs of the actions of a tree-packed batch, at the sampling temperature.

    The softmax is computed in float32, or in float64 if the model is float64.
    """
    device = model.device
    mask = batch.mask.to(device)
    pairs = torch.stack([batch.predictors.to(device)[mask], batch.targets.to(device)[mask]])
    # Turns whose actions start alike need the same token at the same position: compute it once.
    (positions, targets), inverse = pairs.unique(dim=1, return_inverse=True)
    hidden, size = final_states(model, batch, positions), _chunk_size(model)
    chunks = [
        _project(states, model.get_output_embeddings(), tokens, temperature, entropies)
        for states, tokens in zip(hidden.split(size), targets.split(size), strict=True)
    ]

    def scatter(values: Sequence[Tensor]) -> Tensor:
        flat = torch.cat(list(values)) if values else hidden.new_zeros(0, dtype=torch.float32)
        return torch.zeros(mask.shape, dtype=flat.dtype, device=device).masked_scatter(mask, flat[inverse])

    return ActionLogProbs(
        logprobs=scatter([logprobs for logprobs, _ in chunks]),
        entropies=scatter([entropy for _, entropy in chunks]) if entropies else None,
        mask=mask,
    )


def _chunk_size(model: PreTrainedModel) -> int:
    return max(1, PROJECTION_BYTES // (4 * int(model.config.get_text_config().vocab_size)))


def _project(
    hidden: Tensor, head: nn.Module, targets: Tensor, temperature: float, entropies: bool
) -> tuple[Tensor, Tensor]:
    """Return log-probs [k] of targets [k] after hidden states [k, H], and entropies; logits are not stored."""
    arguments = (hidden, head, targets, temperature, entropies)
    if hidden.requires_grad and not entropies and _is_frozen_projection(head):
        logprobs = _FrozenProjection.apply(hidden, head.weight, targets, temperature)  # type: ignore[no-untyped-call]
        return logprobs, logprobs
    if torch.is_grad_enabled():
        return checkpoint(_target_logprobs, *arguments, use_reentrant=False)  # type: ignore[no-any-return]
    return _target_logprobs(*arguments)


def _target_logprobs(
    hidden: Tensor, head: nn.Module, targets: Tensor, temperature: float, entropies: bool
) -> tuple[Tensor, Tensor]:
    logits = _scaled(head(hidden), temperature)
    logprobs = -cross_entropy(logits, targets, reduction="none")
    if not entropies:
        return logprobs, logprobs
    log_softmax = logits.log_softmax(1)
    return logprobs, -(log_softmax.exp() * log_softmax).sum(1)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """Return logits at a temperature, in float32 or float64."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature == 1 else logits / temperature


def _is_frozen_projection(head: nn.Module) -> bool:
    plain = type(head) is nn.Linear and getattr(head, "bias", None) is None
    return plain and not head.weight.requires_grad


class _FrozenProjection(torch.autograd.Function):
    """Log-probs through an output head that is not trained, with their gradient already computed in the forward pass.

    With z = W h / temperature, the gradient of log p(target) with respect to h is (W[target] - softmax(z) W) /
    temperature. So logits are neither stored nor computed again in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
        log_softmax = _scaled(linear(hidden, weight), temperature).log_softmax(1)
        logprobs = log_softmax.gather(1, targets[:, None])[:, 0]
        mean = log_softmax.exp_().to(weight.dtype) @ weight
        ctx.save_for_backward(((weight[targets] - mean) / temperature).to(hidden.dtype))
        return logprobs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return gradient[:, None].to(slope.dtype) * slope, None, None, None


def padded_logprobs(
    model: PreTrainedModel, turns: Sequence[Turn], *, temperature: float = 1.0, entropies: bool = False
) -> ActionLogProbs:
    """Return log-probs of the actions of turns, computed with one padded row per turn."""
    device = model.device
    sequences = [torch.tensor(turn.prompt_ids + turn.action_ids) for turn in turns]
    input_ids = nn.utils.rnn.pad_sequence(sequences, batch_first=True).to(device)
    attention_mask = length_mask(torch.tensor([len(sequence) for sequence in sequences])).long().to(device)
    logits = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    mask = length_mask(torch.tensor([len(turn.action_ids) for turn in turns])).to(device)
    rows, entropy_rows = [], []
    for row, turn in zip(logits.log_softmax(2), turns, strict=True):
        start = len(turn.prompt_ids) - 1
        action = row[start : start + len(turn.action_ids)]
        rows.append(action[range(len(turn.action_ids)), list(turn.action_ids)])
        entropy_rows.append(-(action.exp() * action).sum(1))
    return ActionLogProbs(
        logprobs=nn.utils.rnn.pad_sequence(rows, batch_first=True),
        entropies=nn.utils.rnn.pad_sequence(entropy_rows, batch_first=True) if entropies else None,
        mask=mask,
    )
