"""Log-probs of sampled actions under a causal language model, with gradients.

Two implementations give the same numbers: `tree_logprobs` computes every distinct token once; `padded_logprobs` uses
one padded row per turn, for tests and for models that cannot be tree-packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from seeupo.config.model_settings import PROJECTION_BYTES
from seeupo.models.packing.batching import PaddedBatch, action_mask, padded_inputs
from seeupo.models.packing.tree import TreeBatch
from seeupo.models.packing.tree_layers import final_states
from seeupo.types import Turn


class ActionLogProbs(NamedTuple):
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
        _project(states, model.get_output_embeddings(), tokens, temperature, entropies, keep=number == 0)
        for number, (states, tokens) in enumerate(zip(hidden.split(size), targets.split(size), strict=True))
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
    hidden: Tensor, head: nn.Module, targets: Tensor, temperature: float, entropies: bool, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Return log-probs [k] of targets [k] after hidden states [k, H], and entropies.

    `keep` allows to store one tensor [k, V] for the backward pass; otherwise logits are computed again there.
    """
    arguments = (hidden, head, targets, temperature, entropies)
    if not torch.is_grad_enabled():
        return _target_logprobs(*arguments)
    if not entropies and type(head) is nn.Linear and getattr(head, "bias", None) is None:
        logprobs = _Projection.apply(hidden, head.weight, targets, (temperature, keep))  # type: ignore[no-untyped-call]
        return logprobs, logprobs
    return checkpoint(_target_logprobs, *arguments, use_reentrant=False)  # type: ignore[no-any-return]


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


class _Projection(torch.autograd.Function):
    """Log-probs through an output head, with the gradient of the hidden states computed in the forward pass.

    With z = W h / temperature and d = softmax(z) - onehot(target), the gradient of log p(target) is -d W / temperature
    for h and -outer(d, h) / temperature for W. The first needs no logits in the backward pass. The second needs d,
    which is stored if `keep` is set, and computed again otherwise.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: tuple[float, bool]) -> Tensor:
        temperature, keep = options
        ctx.temperature = temperature
        logprobs, difference, ctx.dtype = _differences(hidden, weight, targets, temperature)
        slope = (difference @ weight.to(ctx.dtype)).mul_(-1 / temperature) if ctx.needs_input_grad[0] else None
        ctx.difference = difference if keep and ctx.needs_input_grad[1] else None
        ctx.save_for_backward(hidden, weight, targets, slope)
        return logprobs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, targets, slope = ctx.saved_tensors
        of_hidden = of_weight = None
        if slope is not None:
            of_hidden = (gradient[:, None].to(slope.dtype) * slope).to(hidden.dtype)
        if ctx.needs_input_grad[1]:
            difference, ctx.difference = ctx.difference, None  # free the largest tensor early
            if difference is None:
                difference = _differences(hidden.to(ctx.dtype), weight.to(ctx.dtype), targets, ctx.temperature)[1]
            scaled = (hidden * (gradient / -ctx.temperature)[:, None]).to(ctx.dtype)
            of_weight = (difference.t() @ scaled).to(weight.dtype)
        return of_hidden, of_weight, None, None


def _differences(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor, torch.dtype]:
    """Return log-probs [k] of targets, softmax - onehot(target) [k, V] in the type of the products, and that type."""
    logits = linear(hidden, weight)
    dtype = logits.dtype
    logits = _scaled(logits, temperature)
    torch.log_softmax(logits, 1, out=logits)  # in place, because the tensor is large
    logprobs = logits.gather(1, targets[:, None])
    difference = logits.exp_().scatter_(1, targets[:, None], logprobs.expm1())
    return logprobs[:, 0], difference.to(dtype), dtype


def padded_logprobs(
    model: PreTrainedModel, turns: Sequence[Turn], *, temperature: float = 1.0, entropies: bool = False
) -> ActionLogProbs:
    """Return log-probs of the actions of turns, computed with one padded row per turn."""
    logits = model(**padded_inputs(turns, model.device)).logits
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    rows, entropy_rows = [], []
    for row, turn in zip(logits.log_softmax(2), turns, strict=True):
        start = len(turn.prompt_ids) - 1
        action = row[start : start + len(turn.action_ids)]
        rows.append(action[range(len(turn.action_ids)), list(turn.action_ids)])
        entropy_rows.append(-(action.exp() * action).sum(1))
    return ActionLogProbs(
        logprobs=nn.utils.rnn.pad_sequence(rows, batch_first=True),
        entropies=nn.utils.rnn.pad_sequence(entropy_rows, batch_first=True) if entropies else None,
        mask=action_mask(turns, model.device),
    )
