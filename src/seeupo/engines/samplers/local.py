"""Single-process sampler: continuous batching with shared prompts, on a model that may be in training."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from seeupo.core.checks import check_count
from seeupo.engines.samplers.kv_cache import (
    Context,
    DecodeAttention,
    NewTokens,
    PrefillAttention,
    Prompt,
    PromptAttention,
    RowCache,
)
from seeupo.engines.samplers.sampling import (
    StopCriteria,
    SyncedWeights,
    check_request,
    copy_weights,
    inverse_cdf,
    truncate,
)
from seeupo.models.decoder import Attention, Decoder
from seeupo.models.loading import LoadedPolicy
from seeupo.types import Completion, CompletionEnd, GenerationRequest, WeightSource
from seeupo.utils.sequences import common_prefix_length


@dataclass
class ActiveRequest:
    """A request that is being sampled in a row of the batch."""

    request: GenerationRequest
    context: Context
    generator: random.Random
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def next_input(self) -> int:
        return self.ids[-1] if self.ids else self.request.prompt_ids[-1]


class LocalSampler:
    """Samples from a loaded policy in this process.

    Each distinct prompt is computed once; rows that share it attend to it together. Keys and values after the prompt
    are private to a row and stay cached from turn to turn of an episode. When a row has finished, a waiting request
    takes its place.

    Args:
        policy: Model to sample from. If a trainer changes its weights in place, `sync` must be called before the next
            request: it drops what was computed with the old ones.
        training: Refuse truncated sampling (top_p, top_k), whose log-probs are not those of the model.
        max_rows: Maximum number of sequences sampled at a time.
        max_cached: Maximum number of cached prompts, and of cached episodes.

    Attributes:
        prefilled_tokens: Number of prompt tokens computed so far.
    """

    def __init__(
        self, policy: LoadedPolicy, *, training: bool = True, max_rows: int = 64, max_cached: int = 512
    ) -> None:
        check_count("max_rows", max_rows, 1)
        check_count("max_cached", max_cached, 1)
        self.policy, self.training, self.max_rows, self.max_cached = policy, training, max_rows, max_cached
        self.version = 0
        self.prefilled_tokens = 0
        self._decoder = Decoder(policy.model)
        self._waiting: deque[GenerationRequest] = deque()
        self._rows: list[ActiveRequest] = []
        self._prompts: OrderedDict[tuple[int, ...], Prompt] = OrderedDict()
        self._episodes: OrderedDict[str, Context] = OrderedDict()
        self._cache = self._empty_cache()
        self._stop = StopCriteria(policy)
        self._weights = SyncedWeights(policy.model)

    def submit(self, request: GenerationRequest) -> None:
        if not (self._rows or self._waiting):
            self._weights.check(self.version)
        check_request(request, self.policy.context_length, training=self.training)
        self._waiting.append(request)

    def poll(self) -> list[Completion]:
        """Admit waiting requests, sample one token in every row, and return the completions that have finished."""
        self._admit_waiting()
        if not self._rows:
            return []
        self._sample_one_token()
        ends = [(row, self._stop.end_of(r.ids, r.request.parameters)) for row, r in enumerate(self._rows)]
        # In reverse order, because a finished row is replaced by the last one.
        return [self._finish(row, end) for row, end in reversed(ends) if end is not None]

    def sync(self, engine: WeightSource, version: int) -> None:
        if self._rows or self._waiting:
            raise RuntimeError("weights cannot change while requests are being sampled; poll until all have finished")
        self._prompts.clear()
        self._episodes.clear()
        copy_weights(self.policy.model, engine)
        self._weights.record()
        self.version = version

    def release(self) -> None:
        if self._rows or self._waiting:
            raise RuntimeError(
                "memory cannot be released while requests are being sampled; poll until all have finished"
            )
        self._prompts.clear()
        self._episodes.clear()
        self._cache = self._empty_cache()
        torch.cuda.empty_cache()  # for a trainer in another process

    def _empty_cache(self) -> RowCache:
        model = self.policy.model
        return RowCache(self._decoder, self.max_rows, self.policy.compute_dtype or model.dtype, model.device)

    def _admit_waiting(self) -> None:
        """Put waiting requests into free rows and compute the new tokens of all their prompts at once."""
        added: list[NewTokens] = []
        while self._waiting and len(self._rows) < self.max_rows:
            request = self._waiting.popleft()
            # The last token of the prompt is the first input of the row; only the tokens before it are prefilled.
            before = request.prompt_ids[:-1]
            context = self._cached_context(request)
            self._cache.insert(len(self._rows), context)
            if missing := before[len(context.prompt.tokens) + len(context.tokens) :]:
                added.append(NewTokens(len(self._rows), context, missing))
            self._rows.append(ActiveRequest(request, context, random.Random(request.seed)))
        if added:
            positions = [position for new in added for position in range(new.position, new.position + len(new.tokens))]
            tokens = [token for new in added for token in new.tokens]
            self._prefill(tokens, positions, PrefillAttention(self._cache, added))
            for new in added:
                new.context.tokens += new.tokens

    def _cached_context(self, request: GenerationRequest) -> Context:
        """Return the cached part of a prompt: of the same episode, or of another row with the same prompt."""
        before = request.prompt_ids[:-1]
        context = self._episodes.pop(request.episode, None) if request.episode is not None else None
        if context is not None and before[: len(context.prompt.tokens)] == context.prompt.tokens:
            unchanged = common_prefix_length(before[len(context.prompt.tokens) :], context.tokens)
            context.tokens = context.tokens[:unchanged]
            return context
        return Context(self._prompt(before), [])

    def _prompt(self, tokens: tuple[int, ...]) -> Prompt:
        if tokens not in self._prompts:
            prompt = Prompt(tokens)
            if tokens:
                self._prefill(tokens, range(len(tokens)), PromptAttention(prompt))
            self._prompts[tokens] = prompt
            if len(self._prompts) > self.max_cached:
                self._prompts.popitem(last=False)
        self._prompts.move_to_end(tokens)
        return self._prompts[tokens]

    def _prefill(self, tokens: Sequence[int], positions: Sequence[int], attention: Attention) -> None:
        device = self.policy.model.device
        with self.policy.autocast():
            self._decoder.hidden(torch.tensor(tokens, device=device), torch.tensor(positions, device=device), attention)
        self.prefilled_tokens += len(tokens)

    def _sample_one_token(self) -> None:
        device = self.policy.model.device
        inputs = [row.next_input for row in self._rows]
        lengths = [len(row.context.tokens) for row in self._rows]
        positions = [len(row.context.prompt.tokens) + n for row, n in zip(self._rows, lengths, strict=True)]
        attention = DecodeAttention(self._cache, [row.context.prompt for row in self._rows], lengths)
        parameters = [row.request.parameters for row in self._rows]
        dtype = torch.promote_types(self.policy.model.dtype, torch.float32)
        temperature = torch.tensor([p.temperature for p in parameters], dtype=dtype, device=device)
        with self.policy.autocast():
            hidden = self._decoder.hidden(
                torch.tensor(inputs, device=device), torch.tensor(positions, device=device), attention
            )
            log_probs = self._decoder.log_probs(hidden, temperature)
        if not self.training:
            log_probs = truncate(log_probs, parameters)
        chosen = inverse_cdf(log_probs, [row.generator.random() for row in self._rows])
        logprobs = log_probs.gather(1, chosen[:, None])[:, 0].tolist()
        for row, token, sampled, logprob in zip(self._rows, inputs, chosen.tolist(), logprobs, strict=True):
            row.context.tokens.append(token)
            row.ids.append(sampled)
            row.logprobs.append(logprob)

    def _finish(self, row: int, end: CompletionEnd) -> Completion:
        finished = self._rows[row]
        if finished.request.episode is not None:
            self._cache.extract(row, finished.context)
            self._episodes[finished.request.episode] = finished.context
            if len(self._episodes) > self.max_cached:
                self._episodes.popitem(last=False)
        last = len(self._rows) - 1
        if row != last:
            self._cache.move(last, row, len(self._rows[last].context.tokens))
            self._rows[row] = self._rows[last]
        self._rows.pop()
        return Completion(
            id=finished.request.id,
            ids=tuple(finished.ids),
            logprobs=tuple(finished.logprobs),
            end=end,
            version=self.version,
        )
