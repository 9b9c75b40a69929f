"""Single-process sampler: continuous batching with shared prompts, on a model that may be in training."""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seeupo.core.checks import check_count
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
class Prompt:
    """Keys and values of a prompt, shared by all rows that start with it: [Hkv, P, D] per layer."""

    tokens: tuple[int, ...]
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


@dataclass
class Context:
    """The computed part of a sequence: a shared prompt, followed by private tokens with their keys and values.

    While the sequence is in the batch, its private keys and values are in its row of the cache; otherwise they are in
    `keys` and `values`, [Hkv, S, D] per layer.
    """

    prompt: Prompt
    tokens: list[int]
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


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
        dtype = policy.compute_dtype or policy.model.dtype
        self._cache = RowCache(self._decoder, max_rows, dtype, policy.model.device)
        self._stop = StopCriteria(policy)
        self._weights = SyncedWeights(policy.model)

    def submit(self, request: GenerationRequest) -> None:
        if not (self._rows or self._waiting):
            self._weights.check(self.version)
        check_request(request, self.policy, training=self.training)
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


class RowCache:
    """Private keys and values of the rows, [rows, Hkv, S, D] per layer; the capacity grows by doubling."""

    def __init__(self, decoder: Decoder, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (rows, decoder.kv_heads, 64, decoder.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(decoder.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(decoder.num_layers)]

    def reserve(self, length: int) -> None:
        have = self.keys[0].shape[2]
        if length > have:
            more = max(length, 2 * have) - have
            for tables in (self.keys, self.values):
                for layer, table in enumerate(tables):
                    tables[layer] = torch.nn.functional.pad(table, (0, 0, 0, more))

    def insert(self, row: int, context: Context) -> None:
        length = len(context.tokens)
        self.reserve(length + 1)
        if length:
            for layer, (keys, values) in enumerate(zip(context.keys, context.values, strict=True)):
                self.keys[layer][row, :, :length] = keys[:, :length]
                self.values[layer][row, :, :length] = values[:, :length]

    def extract(self, row: int, context: Context) -> None:
        length = len(context.tokens)
        context.keys = [table[row, :, :length].clone() for table in self.keys]
        context.values = [table[row, :, :length].clone() for table in self.values]

    def move(self, source: int, target: int, length: int) -> None:
        for table in (*self.keys, *self.values):
            table[target, :, :length] = table[source, :, :length]


@dataclass
class PromptAttention:
    """Causal attention within a prompt; stores its keys and values."""

    prompt: Prompt

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        own_keys, own_values = keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()
        self.prompt.keys.append(own_keys)
        self.prompt.values.append(own_values)
        return causal(queries, own_keys, own_values)


@dataclass
class NewTokens:
    """Tokens of a row that follow its cached context."""

    row: int
    context: Context
    tokens: tuple[int, ...]

    @property
    def position(self) -> int:
        return len(self.context.prompt.tokens) + len(self.context.tokens)


class PrefillAttention:
    """Attention of new tokens of several rows: to the row's prompt and private tokens, and causally to themselves."""

    def __init__(self, cache: RowCache, added: list[NewTokens]) -> None:
        self.cache, self.added = cache, added
        cache.reserve(max(len(new.context.tokens) + len(new.tokens) for new in added) + 1)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        attended, first = torch.empty_like(queries), 0
        for new in self.added:
            here = slice(first, first + len(new.tokens))
            start, end = len(new.context.tokens), len(new.context.tokens) + len(new.tokens)
            seen = []
            for computed, table, prompt in (
                (keys, self.cache.keys[layer], new.context.prompt.keys),
                (values, self.cache.values[layer], new.context.prompt.values),
            ):
                table[new.row, :, start:end] = computed[here].transpose(0, 1)
                own = table[new.row, :, :end]
                seen.append(torch.cat([prompt[layer], own], 1) if prompt else own)
            attended[here] = causal(queries[here], *seen)
            first = here.stop
        return attended


class DecodeAttention:
    """Attention of one new token per row: to the prompt, jointly with the rows that share it, and to private tokens.

    The two parts are merged by the logarithms of their softmax sums, which gives the softmax over both.
    """

    def __init__(self, cache: RowCache, prompts: list[Prompt], lengths: list[int]) -> None:
        self.cache = cache
        self.rows = len(prompts)
        cache.reserve(max(lengths) + 1)
        device = cache.keys[0].device
        self.lengths = torch.tensor(lengths, device=device)
        self.longest = max(lengths) + 1
        beyond = torch.arange(self.longest, device=device) > self.lengths[:, None]
        dtype = torch.promote_types(cache.keys[0].dtype, torch.float32)
        self.mask = torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill_(beyond, -math.inf)
        self.all_rows = torch.arange(self.rows, device=device)
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
        scaled = (queries.to(self.mask.dtype) * head_dim**-0.5).view(rows, kv_heads, repeat, head_dim)
        self.cache.keys[layer][self.all_rows, :, self.lengths] = keys
        self.cache.values[layer][self.all_rows, :, self.lengths] = values
        own_keys = self.cache.keys[layer][:rows, :, : self.longest]
        own_values = self.cache.values[layer][:rows, :, : self.longest]
        scores = attention_scores(scaled, own_keys).add_(self.mask[:, None, None])
        own, own_total = partial_attention(scores, own_values)
        if not self.groups:
            return own.reshape(rows, -1, head_dim)
        if self.order is None:
            merged = merge(own, own_total, *self._attend_to_prompts(layer, scaled))
        else:
            merged = own.clone()
            shared = merge(own[self.order], own_total[self.order], *self._attend_to_prompts(layer, scaled[self.order]))
            merged[self.order] = shared
        return merged.reshape(rows, -1, head_dim)

    def _attend_to_prompts(self, layer: int, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """Attend with queries [rows, Hkv, repeat, D], grouped by prompt, to their prompts."""
        _, kv_heads, repeat, head_dim = scaled.shape
        results, totals, first = [], [], 0
        for prompt, count in self.groups:
            # [Hkv, count * repeat, D] times [Hkv, P, D]: one matrix product for all rows of the prompt.
            together = scaled[first : first + count].transpose(0, 1).reshape(kv_heads, -1, head_dim)
            result, total = partial_attention(attention_scores(together, prompt.keys[layer]), prompt.values[layer])
            results.append(result.view(kv_heads, count, repeat, head_dim).transpose(0, 1))
            totals.append(total.view(kv_heads, count, repeat, 1).transpose(0, 1))
            first += count
        return (results[0], totals[0]) if len(results) == 1 else (torch.cat(results), torch.cat(totals))


def merge(one: Tensor, one_total: Tensor, other: Tensor, other_total: Tensor) -> Tensor:
    """Return attention over two parts from attention over each, weighted by the logarithms of their softmax sums."""
    return torch.lerp(other, one, (one_total - other_total).sigmoid())


def attention_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the products [..., Q, S] of queries [..., Q, D] and keys [..., S, D].

    For keys in bfloat16, queries and products are float32, as inside PyTorch's kernels: rounded products would change
    the softmax by percents.
    """
    if keys.dtype != torch.bfloat16:
        return queries @ keys.transpose(-1, -2)
    with torch.autocast(keys.device.type, enabled=False):
        return queries @ keys.float().transpose(-1, -2)


def partial_attention(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of scores [..., S] over values [..., S, D], and the logarithm of its sum [..., 1]."""
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp_()
    total = weights.sum(-1, keepdim=True)
    return weights.to(values.dtype) @ values / total, top + total.log()


def causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attend causally with the last N positions [N, Hq, D] of a sequence to its keys and values [Hkv, S, D]."""
    count, seen = len(queries), keys.shape[1]
    mask = torch.ones(count, seen, dtype=torch.bool, device=keys.device).tril(seen - count)
    attended = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
    )
    return attended[0].transpose(0, 1)
