"""What both samplers of this process do alike: refuse the impossible, draw tokens, and see where a turn ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from seeupo.core.checks import check_count
from seeupo.models.loading import LoadedPolicy
from seeupo.types import CompletionEnd, GenerationRequest, SamplingParameters, WeightSource


def check_request(request: GenerationRequest, policy: LoadedPolicy, *, training: bool) -> None:
    """Refuse a request that the model cannot take."""
    check_parameters(request.parameters, training=training)
    if not request.prompt_ids:
        raise ValueError(f"request {request.id} has a prompt without tokens")
    length = len(request.prompt_ids) + request.parameters.max_tokens
    if length > policy.context_length:
        raise ValueError(
            f"request {request.id} needs {len(request.prompt_ids)} prompt tokens and up to "
            f"{request.parameters.max_tokens} new ones; the model takes {policy.context_length}"
        )


class Ends:
    """Where a completion of a policy ends."""

    def __init__(self, policy: LoadedPolicy) -> None:
        self.tokenizer = policy.tokenizer
        settings = policy.model.generation_config
        ends = settings.eos_token_id if settings is not None else None
        self.tokens = {policy.tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}

    def of(self, ids: Sequence[int], parameters: SamplingParameters) -> CompletionEnd | None:
        """Why nothing follows the ids; None if something does."""
        if ids[-1] in self.tokens:
            return CompletionEnd.END_OF_TURN
        if parameters.stop:
            # A stop string of n characters ends within the text of the last n tokens, each being at least part of one.
            tail = self.tokenizer.decode(list(ids[-max(map(len, parameters.stop)) - 8 :]))
            if any(stop in tail for stop in parameters.stop):
                return CompletionEnd.STOP_STRING
        return CompletionEnd.LENGTH if len(ids) >= parameters.max_tokens else None


def copy_weights(model: PreTrainedModel, engine: WeightSource) -> None:
    """Copy an engine's weights into a sampler's model by name; nothing if the engine trains this very model."""
    if engine.owns(model):
        return
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in engine.weights():
            if name not in own:
                raise ValueError(f"the sampler's model has no weight {name!r}; it is another model than the engine's")
            own.pop(name).copy_(weight)
    if own:
        raise ValueError(f"the engine has no weight {min(own)!r}; the sampler has another model than the engine's")


STRETCH = 256
"""Tokens whose probabilities are summed before any is looked at: a cumulative sum of the vocabulary costs more."""


def inverse_cdf(log_probs: Tensor, uniforms: list[float]) -> Tensor:
    """The token [R] at which each row's cumulative probability [R, V] passes its uniform number."""
    rows, size = log_probs.shape
    stretches = torch.nn.functional.pad(log_probs.exp(), (0, -size % STRETCH)).view(rows, -1, STRETCH)
    cumulative = stretches.sum(2).cumsum(1, dtype=torch.float64)
    wanted = torch.tensor(uniforms, dtype=torch.float64, device=log_probs.device)[:, None] * cumulative[:, -1:]
    stretch = torch.searchsorted(cumulative, wanted, right=True).clamp(max=cumulative.shape[1] - 1)
    before = torch.nn.functional.pad(cumulative, (1, 0)).gather(1, stretch)
    within = stretches[torch.arange(rows, device=log_probs.device), stretch[:, 0]].cumsum(1, dtype=torch.float64)
    place = torch.searchsorted(within, wanted - before, right=True).clamp(max=STRETCH - 1)
    chosen = (stretch * STRETCH + place)[:, 0].clamp(max=size - 1)
    # At the very edge rounding may point at a token of probability 0, which must not be drawn.
    impossible = log_probs.gather(1, chosen[:, None])[:, 0].exp() == 0
    if impossible.any():
        chosen = torch.where(impossible, log_probs.argmax(1), chosen)
    return chosen


def truncated(log_probs: Tensor, parameters: list[SamplingParameters]) -> Tensor:
    """Log-probs [R, V] of the distribution cut off at top_k tokens and top_p of the probability."""
    for row, wish in enumerate(parameters):
        if wish.top_k == 0 and wish.top_p == 1:
            continue
        ordered, order = log_probs[row].sort(descending=True)
        before = ordered.exp().cumsum(0) - ordered.exp()
        keep = before < wish.top_p
        if wish.top_k:
            keep[wish.top_k :] = False
        kept = torch.full_like(ordered, -math.inf).scatter(0, order[keep], ordered[keep])
        log_probs = log_probs.index_put((torch.tensor(row),), kept.log_softmax(0))
    return log_probs


def check_parameters(parameters: SamplingParameters, *, training: bool) -> None:
    """Refuse what cannot be sampled, and in training what would not be trained on as it was sampled."""
    check_count("max_tokens", parameters.max_tokens, 1)
    check_count("top_k", parameters.top_k, 0)
    if not 0 < parameters.temperature < math.inf:
        raise ValueError(f"temperature is {parameters.temperature}; it must be positive")
    if not 0 < parameters.top_p <= 1:
        raise ValueError(f"top_p is {parameters.top_p}; it must be in (0, 1]")
    if training and (parameters.top_p < 1 or parameters.top_k):
        raise ValueError(
            f"top_p={parameters.top_p}, top_k={parameters.top_k}: truncated sampling draws from another distribution "
            "than the one that is trained, so that ratios start away from 1; use top_p=1 and top_k=0 in training"
        )
