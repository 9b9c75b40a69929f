"""Single-process sampler: continuous batching, shared prefixes and speculation, on a model that may be in training."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, takewhile

import torch

from seeupo.inference.attention import PrefillAttention, RowAttention, StepAttention
from seeupo.inference.decoder import Decoder
from seeupo.inference.decoding_weights import AdapterRows
from seeupo.inference.drafts import DraftHistory, Drafts, Guess
from seeupo.inference.kv_cache import Context, CopiedSegment, NewSegment, NewTokens, RowCache
from seeupo.inference.prefix_tree import PrefixTree, Segment
from seeupo.inference.sampling import ModelSampler, check_idle, sample_tokens
from seeupo.models.loading import LoadedPolicy
from seeupo.models.lora.turn_adapters import turn_adapters
from seeupo.protocols import WeightSource
from seeupo.types import Completion, CompletionEnd, GenerationRequest, SamplingParameters, Turn
from seeupo.utils.sequences import common_prefix_length

CACHE_BYTES = 4 * 2**30
"""Size of the keys and values kept between requests: 64 episodes of 1,400 tokens of SmolLM2-135M in float32."""
SHARED_TOKENS = 32
"""Length of a prompt's last segment from which rows attend to it together; below, each row has a copy.

An operation per segment and layer costs about as much as reading 32 more tokens in each of eight rows.
"""
PREFILL_TOKENS = 8192
"""Number of tokens to prefill after which no further request is admitted to a pass, which bounds its memory."""


@dataclass(eq=False)
class ActiveRequest:
    """A request that is being sampled in a row of the batch.

    Attributes:
        uniforms: The random numbers of its tokens, by position; drawn in order, so drafts do not change them.
        work: Counts as in `Completion.work`.
    """

    request: GenerationRequest
    context: Context
    generator: random.Random
    history: DraftHistory
    work: Counter[str]
    uniforms: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def next_input(self) -> int:
        return self.ids[-1] if self.ids else self.request.prompt_ids[-1]

    def next_uniforms(self, count: int) -> list[float]:
        """Return the random numbers of the next tokens."""
        first = len(self.ids)
        self.uniforms += [self.generator.random() for _ in range(first + count - len(self.uniforms))]
        return self.uniforms[first : first + count]


class LocalSampler(ModelSampler):
    """Samples from a loaded policy in this process.

    Prompts are kept in a radix tree, so that each distinct prefix is computed once and rows that share it attend to it
    together. Keys and values after the prompt are private to a row and stay cached from turn to turn of an episode.
    When a row has finished, a waiting request takes its place.

    With one adapter per turn, requests of all turns are sampled in one batch, each row with the adapter of its turn.
    Keys and values depend on the adapter, so each has its own prefixes, and an episode's context is computed again when
    its next turn has another adapter.

    With speculation a pass also computes a draft of each row's next tokens. A draft token is kept only if the row's own
    random number draws it, so the tokens are the same as one at a time, up to the rounding of the products.

    Args:
        policy: Model to sample from. If a trainer changes its weights in place, `sync` must be called before the next
            request: it drops what was computed with the old ones.
        training: Refuse truncated sampling (top_p, top_k), whose log-probs differ from the model's.
        max_rows: Maximum number of sequences sampled at a time.
        cache_bytes: Maximum size of the keys and values kept for later requests.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        *,
        training: bool = True,
        max_rows: int = 64,
        speculation: bool = True,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        super().__init__(policy, training=training, max_rows=max_rows)
        self.speculation = speculation
        self.prefilled_tokens = 0
        self._adapters = turn_adapters(policy.model)
        self._decoder = Decoder(policy.model)
        self._rows: list[ActiveRequest] = []
        self._cache = self._empty_cache()
        self._max_cached = cache_bytes // self._cache.bytes_per_token
        self._drafts = Drafts()
        self._forget()

    def submit(self, request: GenerationRequest) -> None:
        self._adapter_of(request)  # it must have one
        super().submit(request)

    def poll(self) -> list[Completion]:
        """Admit waiting requests, run one forward pass over all rows, and return the completions that have finished."""
        prefill, copied = self._admit_waiting()
        if not self._rows:
            return []
        ends = self._sample(prefill, copied)
        # In reverse order, because a finished row is replaced by the last one.
        finished = [self._finish(row, ends[row]) for row in sorted(ends, reverse=True)]
        self._evict()
        return finished

    def cancel(self, ids: Iterable[str]) -> None:
        cancelled = set(ids)
        super().cancel(cancelled)
        for row in reversed(range(len(self._rows))):
            if self._rows[row].request.id in cancelled:
                self._remove(row)

    def sync(self, engine: WeightSource, version: int) -> None:
        super().sync(engine, version)
        self._forget()

    def draft_from(self, turns: Iterable[Turn]) -> None:
        if self.speculation:
            for turn in turns:
                self._drafts.learn(turn.prompt_ids, turn.action_ids)

    def release(self) -> None:
        check_idle(self._rows or self._waiting, "memory cannot be released")
        self._forget()
        self._cache = self._empty_cache()
        torch.cuda.empty_cache()  # for a trainer in another process

    def _forget(self) -> None:
        """Drop everything that was computed from the weights or learned from samples."""
        self._decoder.drop_snapshot()
        self._tree = PrefixTree()
        self._episodes: OrderedDict[str, Context] = OrderedDict()
        self._drafts.clear()

    def _empty_cache(self) -> RowCache:
        model = self.policy.model
        return RowCache(self._decoder, self.max_rows, self.policy.compute_dtype or model.dtype, model.device)

    def _admit_waiting(self) -> tuple[PrefillAttention, list[CopiedSegment]]:
        """Put waiting requests into free rows, and return the tokens of their prompts to compute and to copy."""
        added: list[NewTokens] = []
        first, count = len(self._rows), 0
        while self._waiting and len(self._rows) < self.max_rows and count < PREFILL_TOKENS:
            request, row = self._waiting.popleft(), len(self._rows)
            # The last token of the prompt is the first input of the row; only the tokens before it are prefilled.
            before, tokens_before = request.prompt_ids[:-1], self._tree.tokens
            context = self._cached_context(request)
            self._cache.insert(row, context)
            missing = before[context.length :]
            if missing:
                added.append(self._cache.new_tokens(row, context, missing))
                context.tokens += missing
            prefilled = len(missing) + self._tree.tokens - tokens_before
            history, generator = DraftHistory(request.prompt_ids), random.Random(request.seed)
            self._rows.append(ActiveRequest(request, context, generator, history, Counter(prefilled=prefilled)))
            count += prefilled
        self.prefilled_tokens += count
        chains = [segment for row in self._rows[first:] for segment in row.context.segment.chain()]
        new = [NewSegment(segment) for segment in dict.fromkeys(chains) if not segment.keys]
        spans: list[NewSegment | NewTokens] = [*new, *added]
        spans.sort(key=lambda span: span.adapter)  # spans with the same adapter are neighbors
        return PrefillAttention(spans, self._cache), self._make_short_ends_private(first)

    def _make_short_ends_private(self, first: int) -> list[CopiedSegment]:
        """Hold short last segments of the prompts of new rows as private tokens, and return what to copy for that."""
        rows: dict[tuple[Segment, int], list[int]] = {}
        for number, row in enumerate(self._rows[first:], first):
            context = row.context
            if context.tokens:
                continue  # an earlier turn has been here
            ends = list(takewhile(lambda segment: len(segment.tokens) < SHARED_TOKENS, context.segment.chain()[::-1]))
            if ends:
                context.segment = ends[-1].parent or context.segment
                context.tokens = [token for segment in reversed(ends) for token in segment.tokens]
            for segment in ends:
                rows.setdefault((segment, segment.start - context.segment.end), []).append(number)
        return [CopiedSegment(self._cache, segment, start, which) for (segment, start), which in rows.items()]

    def _cached_context(self, request: GenerationRequest) -> Context:
        """Return the cached part of a prompt: of the same episode, or of other rows whose prompts start with it."""
        before, adapter = request.prompt_ids[:-1], self._adapter_of(request)
        context = self._episodes.pop(request.episode, None) if request.episode is not None else None
        if context is not None and context.segment.starts(before):
            if context.segment.adapter != adapter:
                # What rows share with each other is the same as with the adapter of the turn before.
                return Context(self._tree.insert(before[: context.segment.end], adapter), [])
            unchanged = common_prefix_length(before[context.segment.end :], context.tokens)
            context.tokens = context.tokens[:unchanged]
            return context
        return Context(self._tree.insert(before, adapter), [])

    def _adapter_of(self, request: GenerationRequest) -> int:
        return 0 if self._adapters is None else self._adapters.of_turn(request.agent, request.agent_role)

    def _sample(self, prefill: PrefillAttention, copied: list[CopiedSegment]) -> dict[int, CompletionEnd]:
        """Prefill and sample at least one token in every row; return the rows that have finished."""
        # Neighbors share the adapter and prefixes, so that a segment's rows are one slice of the batch.
        order = sorted(range(len(self._rows)), key=lambda number: self._rows[number].context.segment.order())
        rows = [self._rows[number] for number in order]
        limits = [row.request.parameters.max_tokens - len(row.ids) - 1 for row in rows]
        drafts = self._drafts.propose([row.history for row in rows], limits) if self.speculation else [[] for _ in rows]
        inputs = [
            NewTokens(self._cache, number, row.context, [row.next_input, *(guess.token for guess in draft)])
            for number, row, draft in zip(order, rows, drafts, strict=True)
        ]
        spans = [*prefill.spans, *inputs]
        tokens = [token for span in spans for token in span.tokens]
        positions = [position for span in spans for position in span.positions]
        parameters: list[SamplingParameters] = []
        uniforms: list[float] = []
        for row, span in zip(rows, inputs, strict=True):
            parameters += [row.request.parameters] * len(span.tokens)
            uniforms += row.next_uniforms(len(span.tokens))
        device = self.policy.model.device
        dtype = torch.promote_types(self.policy.model.dtype, torch.float32)
        temperature = torch.tensor([p.temperature for p in parameters], dtype=dtype, device=device)
        with self.policy.autocast():
            hidden = self._decoder.hidden(
                torch.tensor(tokens, device=device),
                torch.tensor(positions, device=device),
                StepAttention(prefill, copied, RowAttention(self._cache, inputs)),
                _adapter_rows(spans) if self._adapters is not None else (),
            )
            probabilities = self._decoder.probabilities(hidden[prefill.count :], temperature)
        drawn = iter(sample_tokens(probabilities, parameters, uniforms))
        ends = {}
        for row, span, draft in zip(rows, inputs, drafts, strict=True):
            end = self._accept(row, span.tokens, draft, list(islice(drawn, len(span.tokens))))
            if end is not None:
                ends[span.row] = end
        return ends

    def _accept(
        self, row: ActiveRequest, inputs: Sequence[int], draft: list[Guess], drawn: list[tuple[int, float]]
    ) -> CompletionEnd | None:
        """Append drawn tokens to a row up to the first that differs from the draft or ends the completion."""
        row.work["passes"] += 1
        row.work["drafted"] += len(draft)
        for number, (token, logprob) in enumerate(drawn):
            row.context.tokens.append(inputs[number])
            row.ids.append(token)
            row.logprobs.append(logprob)
            end = self._stop.end_of(row.ids, row.request.parameters)
            if self.speculation:
                self._drafts.observe(row.history, token)
            if number < len(draft):
                self._drafts.check(draft[number], token)
                row.work["accepted"] += token == draft[number].token
            if end is not None or number == len(draft) or token != draft[number].token:
                return end
        raise AssertionError("the last drawn token follows the draft")

    def _finish(self, row: int, end: CompletionEnd) -> Completion:
        finished = self._rows[row]
        if finished.request.episode is not None:
            self._cache.extract(row, finished.context)
            finished.context.used = self._tree.clock
            self._episodes[finished.request.episode] = finished.context
        self._remove(row)
        return Completion(
            id=finished.request.id,
            ids=tuple(finished.ids),
            logprobs=tuple(finished.logprobs),
            end=end,
            version=self.version,
            work={"tokens": len(finished.ids), **finished.work},
        )

    def _remove(self, row: int) -> None:
        """Put the last row into the place of a row."""
        last = self._rows.pop()
        if row < len(self._rows):
            self._cache.move(len(self._rows), row, len(last.context.tokens))
            self._rows[row] = last

    def _evict(self) -> None:
        """Drop the least recently used episodes and ends of prompts until the cache has its maximum size."""
        cached = self._tree.tokens + sum(len(context.tokens) for context in self._episodes.values())
        while cached > self._max_cached:
            contexts = [*self._episodes.values(), *(row.context for row in self._rows)]
            segment = self._tree.least_used({context.segment for context in contexts})
            name, episode = next(iter(self._episodes.items()), ("", None))
            if segment is not None and (episode is None or segment.used <= episode.used):
                self._tree.remove(segment)
                cached -= len(segment.tokens)
            elif episode is not None:
                del self._episodes[name]
                cached -= len(episode.tokens)
            else:
                break  # everything is in use


def _adapter_rows(spans: Sequence[NewSegment | NewTokens]) -> list[AdapterRows]:
    """Return the runs of neighboring tokens with the same adapter."""
    runs: list[AdapterRows] = []
    first = 0
    for adapter, neighbors in groupby(spans, key=lambda span: span.adapter):
        end = first + sum(len(span.tokens) for span in neighbors)
        runs.append(AdapterRows(adapter, slice(first, end)))
        first = end
    return runs
