"""A sampler with padded rows and the model's own cache, for models that LocalSampler does not support."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seeupo.inference.sampling import ModelSampler, sample_tokens
from seeupo.models.loading import LoadedPolicy
from seeupo.types import Completion, GenerationRequest, Turn


@dataclass
class Row:
    """A request that is being sampled."""

    request: GenerationRequest
    generator: random.Random
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: bool = False


class PaddedSampler(ModelSampler):
    """Samples one batch of left-padded rows after another; a batch takes as long as its longest row."""

    def __init__(self, policy: LoadedPolicy, *, training: bool = True, max_rows: int = 64) -> None:
        super().__init__(policy, training=training, max_rows=max_rows)
        self._rows: list[Row] = []
        self._cache: Any = None
        self._mask = torch.empty(0)

    @torch.no_grad()
    def poll(self) -> list[Completion]:
        """Sample one token in every row of the batch and return the completions that have finished."""
        if not self._rows:
            count = min(self.max_rows, len(self._waiting))
            if not count:
                return []
            self._rows = [Row(r, random.Random(r.seed)) for r in (self._waiting.popleft() for _ in range(count))]
            inputs = self._first_inputs()
        else:
            inputs = torch.tensor([[row.ids[-1]] for row in self._rows], device=self.policy.model.device)
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        # Padding needs some valid position, and finished rows may run past the model's last one.
        positions = (self._mask.cumsum(1) - 1).clamp(0, self.policy.context_length - 1)[:, -inputs.shape[1] :]
        with self.policy.autocast():
            output = self.policy.model(
                input_ids=inputs,
                attention_mask=self._mask,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        self._cache = output.past_key_values
        self._sample_tokens(output.logits[:, -1])
        finished = []
        for row in self._rows:
            end = None if row.finished else self._stop.end_of(row.ids, row.request.parameters)
            if end is not None:
                row.finished = True
                ids, logprobs = tuple(row.ids), tuple(row.logprobs)
                finished.append(
                    Completion(id=row.request.id, ids=ids, logprobs=logprobs, end=end, version=self.version)
                )
        self._end_finished_batch()
        return finished

    def cancel(self, ids: Iterable[str]) -> None:
        cancelled = set(ids)
        super().cancel(cancelled)
        for row in self._rows:
            row.finished |= row.request.id in cancelled
        self._end_finished_batch()

    def _end_finished_batch(self) -> None:
        if all(row.finished for row in self._rows):
            self._rows, self._cache = [], None

    def draft_from(self, turns: Iterable[Turn]) -> None:
        """Do nothing: this sampler guesses no tokens."""

    def release(self) -> None:
        """Do nothing: the cache of a batch ends with it."""

    def _first_inputs(self) -> Tensor:
        device = self.policy.model.device
        prompts = [torch.tensor(row.request.prompt_ids, device=device) for row in self._rows]
        self._mask = _left_padded([torch.ones_like(prompt) for prompt in prompts])
        return _left_padded(prompts)

    def _sample_tokens(self, logits_RV: Tensor) -> None:
        """Sample a token for every row, also for finished ones, whose tokens are ignored."""
        parameters = [row.request.parameters for row in self._rows]
        logits_RV = logits_RV if logits_RV.dtype == torch.float64 else logits_RV.float()
        temperature = logits_RV.new_tensor([p.temperature for p in parameters])
        probabilities = (logits_RV / temperature[:, None]).softmax(1)
        drawn = sample_tokens(probabilities, parameters, [row.generator.random() for row in self._rows])
        for row, (token, logprob) in zip(self._rows, drawn, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)


def _left_padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
