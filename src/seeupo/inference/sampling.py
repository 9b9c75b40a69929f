"""Code shared by the samplers: check requests and weights, sample tokens, detect stops, copy weights."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from seeupo.models.loading import LoadedPolicy
from seeupo.models.lora.adapters import is_adapter
from seeupo.models.lora.turn_adapters import turn_adapters
from seeupo.protocols import WeightSource
from seeupo.types import CompletionEnd, GenerationRequest, SamplingParameters
from seeupo.utils.option_checks import check_count


def check_request(request: GenerationRequest, context_length: int, *, training: bool) -> None:
    """Raise if the model cannot process a request."""
    check_parameters(request.parameters, training=training)
    if not request.prompt_ids:
        raise ValueError(f"request {request.id} has an empty prompt; expected at least one token")
    length = len(request.prompt_ids) + request.parameters.max_tokens
    if length > context_length:
        raise ValueError(
            f"request {request.id} needs {len(request.prompt_ids)} prompt tokens and up to "
            f"{request.parameters.max_tokens} new ones; the model's context is {context_length}"
        )


def check_idle(requests: object, refused: str) -> None:
    """Raise if a sampler has requests; `refused` names what has to wait for them."""
    if requests:
        raise RuntimeError(f"{refused} while requests are being sampled; poll until all have finished")


def check_parameters(parameters: SamplingParameters, *, training: bool) -> None:
    """Raise if the parameters are invalid, or if training could not reproduce the sampling distribution."""
    check_count("max_tokens", parameters.max_tokens, 1)
    check_count("top_k", parameters.top_k, 0)
    if not 0 < parameters.temperature < math.inf:
        raise ValueError(f"temperature = {parameters.temperature}: expected a positive number")
    if not 0 < parameters.top_p <= 1:
        raise ValueError(f"top_p = {parameters.top_p}: expected a number in (0, 1]")
    if training and (parameters.top_p < 1 or parameters.top_k):
        raise ValueError(
            f"top_p={parameters.top_p}, top_k={parameters.top_k}: truncated sampling uses a different distribution "
            "from the one that is trained, so ratios would not start at 1; use top_p=1 and top_k=0 in training"
        )


class StopCriteria:
    """Decides where a completion ends."""

    def __init__(self, policy: LoadedPolicy) -> None:
        self.tokenizer = policy.tokenizer
        config = policy.model.generation_config
        ends = config.eos_token_id if config is not None else None
        self.end_tokens = {policy.tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}

    def end_of(self, ids: Sequence[int], parameters: SamplingParameters) -> CompletionEnd | None:
        """Return why a completion ends with these ids; None if sampling continues."""
        if ids[-1] in self.end_tokens:
            return CompletionEnd.END_OF_TURN
        if parameters.stop:
            # A stop string of n characters lies within the last n tokens: each holds at least part of a character.
            tail = self.tokenizer.decode(list(ids[-max(map(len, parameters.stop)) - 8 :]))
            if any(stop in tail for stop in parameters.stop):
                return CompletionEnd.STOP_STRING
        return CompletionEnd.LENGTH if len(ids) >= parameters.max_tokens else None


def copy_weights(model: PreTrainedModel, engine: WeightSource) -> None:
    """Copy an engine's weights into a sampler's model by name; do nothing if the engine trains this model itself.

    With one adapter per turn, only the adapters are copied.
    """
    if engine.owns(model):
        return
    adapted = turn_adapters(model) is not None
    parameters = {name: weight for name, weight in model.named_parameters() if is_adapter(name) or not adapted}
    with torch.no_grad():
        for name, weight in engine.weights():
            if name not in parameters or parameters[name].shape != weight.shape:
                present = f"shape {tuple(parameters[name].shape)}" if name in parameters else "no such weight"
                raise ValueError(
                    f"the engine's weight {name!r} has shape {tuple(weight.shape)}, the sampler's model has {present}; "
                    "load the same model in both"
                )
            parameters.pop(name).copy_(weight)
    if parameters:
        raise ValueError(f"the engine has no weight {min(parameters)!r}; load the same model in both")


class ModelSampler:
    """Base class of the samplers of a loaded model: the queue of requests, and the version of the weights.

    A model that was trained in place since the last sync is refused: new weights would be combined with keys and values
    that were computed from old ones, and the wrong version recorded. PyTorch counts the in-place changes of every
    tensor, except those of fused kernels, which the engine's optimizer counts itself.
    """

    def __init__(self, policy: LoadedPolicy, *, training: bool, max_rows: int) -> None:
        check_count("max_rows", max_rows, 1)
        self.policy = policy
        self.training = training
        self.max_rows = max_rows
        self.version = 0
        self._waiting: deque[GenerationRequest] = deque()
        self._rows: list[Any] = []
        self._stop = StopCriteria(policy)
        self._changes = self._count_changes()

    def submit(self, request: GenerationRequest) -> None:
        if not (self._rows or self._waiting) and self._count_changes() != self._changes:
            raise RuntimeError(
                f"the weights have changed since version {self.version} was synced; call sampler.sync(engine, version) "
                "after every update, before sampling"
            )
        check_request(request, self.policy.context_length, training=self.training)
        self._waiting.append(request)

    def cancel(self, ids: Iterable[str]) -> None:
        """Drop requests that wait; subclasses drop those in rows."""
        cancelled = set(ids)
        self._waiting = deque(request for request in self._waiting if request.id not in cancelled)

    def sync(self, engine: WeightSource, version: int) -> None:
        check_idle(self._rows or self._waiting, "weights cannot change")
        copy_weights(self.policy.model, engine)
        self._changes = self._count_changes()
        self.version = version

    def _count_changes(self) -> int:
        return sum(parameter._version for parameter in self.policy.model.parameters())


def sample_tokens(
    probabilities: Tensor, parameters: Sequence[SamplingParameters], uniforms: Sequence[float]
) -> list[tuple[int, float]]:
    """Return a token and its log-prob for each row of probabilities [R, V], drawn by its uniform random number."""
    probabilities = truncate(probabilities, parameters)
    tokens = inverse_cdf(probabilities, uniforms)
    logprobs = probabilities.gather(1, tokens[:, None])[:, 0].log().tolist()
    if not all(map(math.isfinite, logprobs)):
        raise FloatingPointError("the policy's probabilities are not finite")
    return list(zip(tokens.tolist(), logprobs, strict=True))


CHUNK = 256
"""Number of tokens whose probabilities are summed first: a cumulative sum over the whole vocabulary costs more."""


def inverse_cdf(probabilities: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Return the token [R] at which each row's cumulative probability [R, V] exceeds its uniform random number."""
    rows, size = probabilities.shape
    padded = torch.nn.functional.pad(probabilities, (0, -size % CHUNK)) if size % CHUNK else probabilities
    chunks = padded.view(rows, -1, CHUNK)
    cumulative = chunks.sum(2).cumsum(1, dtype=torch.float64)
    targets = torch.tensor(uniforms, dtype=torch.float64, device=probabilities.device)[:, None] * cumulative[:, -1:]
    chunk = torch.searchsorted(cumulative, targets, right=True).clamp(max=cumulative.shape[1] - 1)
    before = torch.nn.functional.pad(cumulative, (1, 0)).gather(1, chunk)
    within = chunks[torch.arange(rows, device=probabilities.device), chunk[:, 0]].cumsum(1, dtype=torch.float64)
    offset = torch.searchsorted(within, targets - before, right=True).clamp(max=CHUNK - 1)
    tokens = (chunk * CHUNK + offset)[:, 0].clamp(max=size - 1)
    # Rounding at the very edge may select a token of probability 0, which must never be sampled.
    impossible = probabilities.gather(1, tokens[:, None])[:, 0] == 0
    if impossible.any():
        tokens = torch.where(impossible, probabilities.argmax(1), tokens)
    return tokens


def truncate(probabilities: Tensor, parameters: Sequence[SamplingParameters]) -> Tensor:
    """Return probabilities [R, V] truncated to the top_k tokens and the nucleus top_p of each row, renormalized."""
    for row, limits in enumerate(parameters):
        if limits.top_k == 0 and limits.top_p == 1:
            continue
        ordered, order = probabilities[row].sort(descending=True)
        keep = ordered.cumsum(0) - ordered < limits.top_p
        if limits.top_k:
            keep[limits.top_k :] = False
        kept = torch.zeros_like(ordered).scatter(0, order[keep], ordered[keep])
        probabilities = probabilities.index_put((torch.tensor(row),), kept / kept.sum())
    return probabilities
