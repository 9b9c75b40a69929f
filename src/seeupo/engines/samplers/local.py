"""The Sampler of one process: continuous batching with shared prompts, on a model that may be in training."""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seeupo.core.checks import check_count
from seeupo.engines.samplers.sampling import Ends, check_request, copy_weights, inverse_cdf, truncated
from seeupo.models.decoder import Attention, Decoder
from seeupo.models.loading import LoadedPolicy
from seeupo.types import Completion, CompletionEnd, GenerationRequest, WeightSource


@dataclass
class Prompt:
    """A prompt's keys and values, computed once for all rows that start with it: per layer [Hkv, P, D]."""

    tokens: tuple[int, ...]
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


@dataclass
class Context:
    """What is known of a sequence: a shared prompt, and behind it tokens of its own with their keys and values.

    While the sequence is in the batch these stand in its row of the cache, otherwise in `keys` and `values`, per layer
    [Hkv, S, D].
    """

    prompt: Prompt
    tokens: list[int]
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


@dataclass
class Running:
    """A request that is being sampled in a row of the batch."""

    request: GenerationRequest
    context: Context
    draw: random.Random
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def next_input(self) -> int:
        return self.ids[-1] if self.ids else self.request.prompt_ids[-1]


class LocalSampler:
    """Samples from a loaded policy in this process.

    Each distinct prompt is computed once; rows that share it attend to it together. Behind it every row has keys and
    values of its own, which stay from turn to turn of an episode. Rows leave when they are finished, and waiting
    requests take their place.

    Args:
        policy: the model. It is read at every step: weights that a trainer changes in place are used at once, but what
            was computed with the old ones must be dropped by `sync`.
        training: refuse sampling whose log-probs would not be those of the model (top_p, top_k).
        max_rows: how many sequences are sampled at a time.
        max_kept: how many prompts and waiting episodes are kept for a later turn.
    """

    def __init__(self, policy: LoadedPolicy, *, training: bool = True, max_rows: int = 64, max_kept: int = 512) -> None:
        check_count("max_rows", max_rows, 1)
        check_count("max_kept", max_kept, 1)
        self.policy, self.training, self.max_rows, self.max_kept = policy, training, max_rows, max_kept
        self.version = 0
        self.prefilled_tokens = 0
        self._decoder = Decoder(policy.model)
        self._waiting: deque[GenerationRequest] = deque()
        self._rows: list[Running] = []
        self._prompts: OrderedDict[tuple[int, ...], Prompt] = OrderedDict()
        self._episodes: OrderedDict[str, Context] = OrderedDict()
        self._cache = RowCache(self._decoder, max_rows, policy.model.dtype, policy.model.device)
        self._ends = Ends(policy)

    def submit(self, request: GenerationRequest) -> None:
        check_request(request, self.policy, training=self.training)
        self._waiting.append(request)

    def poll(self) -> list[Completion]:
        """Take in waiting requests, turn one token in every row, and return the requests that this finished."""
        self._take_in_waiting()
        if not self._rows:
            return []
        self._sample_one_token()
        ends = [(row, self._ends.of(r.ids, r.request.parameters)) for row, r in enumerate(self._rows)]
        # From the last row on: a row that leaves is replaced by the last one.
        return [self._finish(row, end) for row, end in reversed(ends) if end is not None]

    def sync(self, engine: WeightSource, version: int) -> None:
        """Copy the engine's weights unless it trains this very model, and drop what the old ones have computed."""
        if self._rows or self._waiting:
            raise RuntimeError("weights cannot change while requests are being sampled; poll until all have finished")
        copy_weights(self.policy.model, engine)
        self._prompts.clear()
        self._episodes.clear()
        self.version = version

    def _take_in_waiting(self) -> None:
        """Give waiting requests the free rows, and compute what is new in their prompts, all at once."""
        spans: list[Span] = []
        while self._waiting and len(self._rows) < self.max_rows:
            request = self._waiting.popleft()
            # The last token of the prompt is the first input of the row: only what stands before it is filled in.
            before = request.prompt_ids[:-1]
            context = self._known_context(request)
            self._cache.put_in(len(self._rows), context)
            if new := before[len(context.prompt.tokens) + len(context.tokens) :]:
                spans.append(Span(len(self._rows), context, new))
            self._rows.append(Running(request, context, random.Random(request.seed)))
        if spans:
            places = [place for span in spans for place in range(span.position, span.position + len(span.tokens))]
            self._prefill([token for span in spans for token in span.tokens], places, FillAttention(self._cache, spans))
            for span in spans:
                span.context.tokens += span.tokens

    def _known_context(self, request: GenerationRequest) -> Context:
        """What has been computed of the request's prompt: by its episode, or for another row with the same prompt."""
        before = request.prompt_ids[:-1]
        context = self._episodes.pop(request.episode, None) if request.episode is not None else None
        if context is not None and before[: len(context.prompt.tokens)] == context.prompt.tokens:
            own = before[len(context.prompt.tokens) :]
            same = next((n for n, (a, b) in enumerate(zip(own, context.tokens, strict=False)) if a != b), None)
            keep = min(len(own), len(context.tokens)) if same is None else same
            context.tokens = context.tokens[:keep]
            return context
        return Context(self._prompt(before), [])

    def _prompt(self, tokens: tuple[int, ...]) -> Prompt:
        if tokens not in self._prompts:
            prompt = Prompt(tokens)
            if tokens:
                self._prefill(tokens, range(len(tokens)), PromptAttention(prompt))
            self._prompts[tokens] = prompt
            if len(self._prompts) > self.max_kept:
                self._prompts.popitem(last=False)
        self._prompts.move_to_end(tokens)
        return self._prompts[tokens]

    def _prefill(self, tokens: Sequence[int], places: Sequence[int], attention: Attention) -> None:
        device = self.policy.model.device
        self._decoder.hidden(torch.tensor(tokens, device=device), torch.tensor(places, device=device), attention)
        self.prefilled_tokens += len(tokens)

    def _sample_one_token(self) -> None:
        device = self.policy.model.device
        inputs = [running.next_input for running in self._rows]
        lengths = [len(running.context.tokens) for running in self._rows]
        places = [len(r.context.prompt.tokens) + n for r, n in zip(self._rows, lengths, strict=True)]
        attention = StepAttention(self._cache, [running.context.prompt for running in self._rows], lengths)
        hidden = self._decoder.hidden(
            torch.tensor(inputs, device=device), torch.tensor(places, device=device), attention
        )
        parameters = [running.request.parameters for running in self._rows]
        temperature = torch.tensor([p.temperature for p in parameters], dtype=hidden.dtype, device=device)
        log_probs = self._decoder.log_probs(hidden, temperature)
        if not self.training:
            log_probs = truncated(log_probs, parameters)
        chosen = inverse_cdf(log_probs, [running.draw.random() for running in self._rows])
        found = log_probs.gather(1, chosen[:, None])[:, 0].tolist()
        for running, token, place, logprob in zip(self._rows, inputs, chosen.tolist(), found, strict=True):
            running.context.tokens.append(token)
            running.ids.append(place)
            running.logprobs.append(logprob)

    def _finish(self, row: int, end: CompletionEnd) -> Completion:
        running = self._rows[row]
        if running.request.episode is not None:
            self._cache.take_out(row, running.context)
            self._episodes[running.request.episode] = running.context
            if len(self._episodes) > self.max_kept:
                self._episodes.popitem(last=False)
        last = len(self._rows) - 1
        if row != last:
            self._cache.move(last, row, len(self._rows[last].context.tokens))
            self._rows[row] = self._rows[last]
        self._rows.pop()
        return Completion(
            id=running.request.id,
            ids=tuple(running.ids),
            logprobs=tuple(running.logprobs),
            end=end,
            version=self.version,
        )


class RowCache:
    """Keys and values of the rows' own tokens, [rows, Hkv, S, D] per layer, with room that grows by doubling."""

    def __init__(self, decoder: Decoder, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (rows, decoder.kv_heads, 64, decoder.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(decoder.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(decoder.num_layers)]

    def make_room(self, length: int) -> None:
        have = self.keys[0].shape[2]
        if length > have:
            more = max(length, 2 * have) - have
            for tables in (self.keys, self.values):
                for layer, table in enumerate(tables):
                    tables[layer] = torch.nn.functional.pad(table, (0, 0, 0, more))

    def put_in(self, row: int, context: Context) -> None:
        length = len(context.tokens)
        self.make_room(length + 1)
        if length:
            for layer, (keys, values) in enumerate(zip(context.keys, context.values, strict=True)):
                self.keys[layer][row, :, :length] = keys[:, :length]
                self.values[layer][row, :, :length] = values[:, :length]

    def take_out(self, row: int, context: Context) -> None:
        length = len(context.tokens)
        context.keys = [table[row, :, :length].clone() for table in self.keys]
        context.values = [table[row, :, :length].clone() for table in self.values]

    def move(self, source: int, target: int, length: int) -> None:
        for table in (*self.keys, *self.values):
            table[target, :, :length] = table[source, :, :length]


@dataclass
class PromptAttention:
    """Causal attention of a prompt to itself, which leaves its keys and values in the prompt."""

    prompt: Prompt

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        own_keys, own_values = keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()
        self.prompt.keys.append(own_keys)
        self.prompt.values.append(own_values)
        return causal(queries, own_keys, own_values)


@dataclass
class Span:
    """New tokens of a row, behind what its context knows."""

    row: int
    context: Context
    tokens: tuple[int, ...]

    @property
    def position(self) -> int:
        return len(self.context.prompt.tokens) + len(self.context.tokens)


class FillAttention:
    """Attention of new tokens of several rows: to the row's prompt, to what the row has, and causally to themselves."""

    def __init__(self, cache: RowCache, spans: list[Span]) -> None:
        self.cache, self.spans = cache, spans
        cache.make_room(max(len(span.context.tokens) + len(span.tokens) for span in spans) + 1)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        attended, first = torch.empty_like(queries), 0
        for span in self.spans:
            here = slice(first, first + len(span.tokens))
            start, end = len(span.context.tokens), len(span.context.tokens) + len(span.tokens)
            seen = []
            for new, table, of_prompt in (
                (keys, self.cache.keys[layer], span.context.prompt.keys),
                (values, self.cache.values[layer], span.context.prompt.values),
            ):
                table[span.row, :, start:end] = new[here].transpose(0, 1)
                own = table[span.row, :, :end]
                seen.append(torch.cat([of_prompt[layer], own], 1) if of_prompt else own)
            attended[here] = causal(queries[here], *seen)
            first = here.stop
        return attended


class StepAttention:
    """Attention of one new token per row: to the prompt, together with the rows that share it, and to the row's own.

    The two parts are merged by the logarithms of their softmax sums, which is the softmax over both.
    """

    def __init__(self, cache: RowCache, prompts: list[Prompt], lengths: list[int]) -> None:
        self.cache = cache
        self.rows = len(prompts)
        cache.make_room(max(lengths) + 1)
        device = cache.keys[0].device
        self.lengths = torch.tensor(lengths, device=device)
        self.longest = max(lengths) + 1
        beyond = torch.arange(self.longest, device=device) > self.lengths[:, None]
        self.mask = torch.zeros(beyond.shape, dtype=cache.keys[0].dtype, device=device).masked_fill_(beyond, -math.inf)
        self.everyone = torch.arange(self.rows, device=device)
        by_prompt: dict[int, list[int]] = {}
        for row, prompt in enumerate(prompts):
            if prompt.tokens:
                by_prompt.setdefault(id(prompt), []).append(row)
        self.groups = [(prompts[rows[0]], len(rows)) for rows in by_prompt.values()]
        order = [row for rows in by_prompt.values() for row in rows]
        self.order = None if order == list(range(self.rows)) else torch.tensor(order, device=device)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows, kv_heads, head_dim = keys.shape
        repeat = queries.shape[1] // kv_heads
        scaled = (queries * head_dim**-0.5).view(rows, kv_heads, repeat, head_dim)
        self.cache.keys[layer][self.everyone, :, self.lengths] = keys
        self.cache.values[layer][self.everyone, :, self.lengths] = values
        own_keys = self.cache.keys[layer][:rows, :, : self.longest]
        own_values = self.cache.values[layer][:rows, :, : self.longest]
        scores = (scaled @ own_keys.transpose(2, 3)).add_(self.mask[:, None, None])
        own, own_total = partial_attention(scores, own_values)
        if not self.groups:
            return own.reshape(rows, -1, head_dim)
        if self.order is None:
            merged = merge(own, own_total, *self._of_prompts(layer, scaled))
        else:
            merged = own.clone()
            behind = merge(own[self.order], own_total[self.order], *self._of_prompts(layer, scaled[self.order]))
            merged[self.order] = behind
        return merged.reshape(rows, -1, head_dim)

    def _of_prompts(self, layer: int, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of queries [rows, Hkv, repeat, D], those of a prompt side by side, to their prompts."""
        _, kv_heads, repeat, head_dim = scaled.shape
        results, totals, first = [], [], 0
        for prompt, count in self.groups:
            # [Hkv, count * repeat, D] against [Hkv, P, D]: one matrix product for all rows of the prompt.
            together = scaled[first : first + count].transpose(0, 1).reshape(kv_heads, -1, head_dim)
            result, total = partial_attention(together @ prompt.keys[layer].transpose(1, 2), prompt.values[layer])
            results.append(result.view(kv_heads, count, repeat, head_dim).transpose(0, 1))
            totals.append(total.view(kv_heads, count, repeat, 1).transpose(0, 1))
            first += count
        return (results[0], totals[0]) if len(results) == 1 else (torch.cat(results), torch.cat(totals))


def merge(one: Tensor, one_total: Tensor, other: Tensor, other_total: Tensor) -> Tensor:
    """Attention over two parts from attention over each, weighted by their softmax sums, given as logarithms."""
    return torch.lerp(other, one, (one_total - other_total).sigmoid())


def partial_attention(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax of scores [..., S] over values [..., S, D], and the logarithm of its sum [..., 1], for merging parts."""
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp_()
    total = weights.sum(-1, keepdim=True)
    return weights @ values / total, top + total.log()


def causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of the last N places [N, Hq, D] to all of [Hkv, S, D], each to itself and what stands before it."""
    count, seen = len(queries), keys.shape[1]
    mask = torch.ones(count, seen, dtype=torch.bool, device=keys.device).tril(seen - count)
    attended = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
    )
    return attended[0].transpose(0, 1)
