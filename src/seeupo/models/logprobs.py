"""Log-probs of sampled actions under a causal language model, with gradients.

Two ways to the same numbers: `tree_logprobs` computes every distinct token once; `padded_logprobs` is its slow, obvious
twin, a row per turn, for tests and for models that cannot be tree-packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from seeupo.core import length_mask
from seeupo.models.batching import PaddedBatch
from seeupo.models.tree import TreeBatch
from seeupo.models.tree_attention import tree_attention
from seeupo.types import Turn

PROJECTION_BYTES = 256 * 2**20
"""Logits over the vocabulary are made for so many tokens at a time that they take no more than this."""


@dataclass(frozen=True)
class ActionLogProbs:
    """Log-probs and, on request, entropies of action tokens, [n, L] with the mask [n, L]; padding holds 0."""

    logprobs: Tensor
    entropies: Tensor | None
    mask: Tensor


def action_logprobs(
    model: PreTrainedModel, batch: TreeBatch | PaddedBatch, *, temperature: float = 1.0, entropies: bool = False
) -> ActionLogProbs:
    """Log-probs of the batch's actions in the order of `batch.turns`, the way it is packed."""
    if isinstance(batch, TreeBatch):
        return tree_logprobs(model, batch, temperature=temperature, entropies=entropies)
    return padded_logprobs(model, batch.rows, temperature=temperature, entropies=entropies)


def tree_logprobs(
    model: PreTrainedModel, batch: TreeBatch, *, temperature: float = 1.0, entropies: bool = False
) -> ActionLogProbs:
    """Log-probs of the batch's actions in the order of `batch.turns`, at the sampling temperature.

    The softmax is taken in float32, or in float64 if the model is.
    """
    device = model.device
    hidden = tree_states(model, batch)
    mask = batch.mask.to(device)
    wanted = torch.stack([batch.predictors.to(device)[mask], batch.targets.to(device)[mask]])
    # Samples that share a prefix into their actions ask for the same token at the same place.
    pairs, which = wanted.unique(dim=1, return_inverse=True)
    found = [
        _project(hidden[places], model.get_output_embeddings(), targets, temperature, entropies)
        for places, targets in zip(*(row.split(_chunk_size(model)) for row in pairs), strict=True)
    ]

    def spread(values: Sequence[Tensor]) -> Tensor:
        flat = torch.cat(list(values)) if values else hidden.new_zeros(0, dtype=torch.float32)
        return torch.zeros(mask.shape, dtype=flat.dtype, device=device).masked_scatter(mask, flat[which])

    return ActionLogProbs(
        logprobs=spread([logprobs for logprobs, _ in found]),
        entropies=spread([entropy for _, entropy in found]) if entropies else None,
        mask=mask,
    )


def tree_states(model: PreTrainedModel, batch: TreeBatch) -> Tensor:
    """Last hidden states [B * N, H] of the batch's tokens."""
    states: Tensor = model.base_model(
        input_ids=batch.input_ids.to(model.device),
        position_ids=batch.position_ids.to(model.device),
        use_cache=False,
        **tree_attention(model, batch),
    ).last_hidden_state
    return states.flatten(0, 1)


def _chunk_size(model: PreTrainedModel) -> int:
    return max(1, PROJECTION_BYTES // (4 * int(model.config.get_text_config().vocab_size)))


def _project(
    hidden: Tensor, head: nn.Module, targets: Tensor, temperature: float, entropies: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs [k] of the targets [k] behind hidden states [k, H], and their entropies; logits are not kept."""
    arguments = (hidden, head, targets, temperature, entropies)
    if torch.is_grad_enabled():
        return checkpoint(_logprobs_behind, *arguments, use_reentrant=False)  # type: ignore[no-any-return]
    return _logprobs_behind(*arguments)


def _logprobs_behind(
    hidden: Tensor, head: nn.Module, targets: Tensor, temperature: float, entropies: bool
) -> tuple[Tensor, Tensor]:
    logits: Tensor = head(hidden)
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    logprobs = -cross_entropy(logits, targets, reduction="none")
    if not entropies:
        return logprobs, logprobs
    log_softmax = logits.log_softmax(1)
    return logprobs, -(log_softmax.exp() * log_softmax).sum(1)


def padded_logprobs(
    model: PreTrainedModel, turns: Sequence[Turn], *, temperature: float = 1.0, entropies: bool = False
) -> ActionLogProbs:
    """The same, one padded row per turn: plain, and as slow as the prompts are long."""
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
        behind = row[start : start + len(turn.action_ids)]
        rows.append(behind[range(len(turn.action_ids)), list(turn.action_ids)])
        entropy_rows.append(-(behind.exp() * behind).sum(1))
    return ActionLogProbs(
        logprobs=nn.utils.rnn.pad_sequence(rows, batch_first=True),
        entropies=nn.utils.rnn.pad_sequence(entropy_rows, batch_first=True) if entropies else None,
        mask=mask,
    )
