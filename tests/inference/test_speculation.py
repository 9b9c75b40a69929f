"""Speculative decoding gives the tokens and log-probs of sampling one token at a time."""

import math
import random
from collections import Counter

import pytest
import torch

from engines.examples import TOKENIZER, policy, request, run
from models.examples import FAMILIES
from seeupo.config.model_settings import TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.inference import drafts
from seeupo.inference.local_sampler import LocalSampler
from seeupo.models.loading import LoadedPolicy
from seeupo.models.tiny import tiny_model
from seeupo.types import CompletionEnd, Turn


def requests_of_groups(count, seed=0, **parameters):
    """Groups of eight with a common start; temperatures at which drafts are accepted often, sometimes and seldom."""
    generator = random.Random(seed)
    made = []
    for number in range(count):
        prompt = (1, 2, 3, *generator.choices(range(39), k=number % 5)) if number % 8 == 0 else made[-1].prompt_ids
        options = {"temperature": (0.1, 0.3, 0.8)[number % 3], "max_tokens": 1 + number % 23, **parameters}
        made.append(request(f"{seed}-{number}", prompt, seed=1000 * seed + number, episode=f"{number}", **options))
    return made


def assert_equal(completions, expected, tolerance):
    assert {name: (completion.ids, completion.end) for name, completion in completions.items()} == {
        name: (completion.ids, completion.end) for name, completion in expected.items()
    }
    for name, completion in completions.items():
        assert completion.logprobs == pytest.approx(expected[name].logprobs, abs=tolerance)


def work_of(completions):
    return sum((Counter(completion.work) for completion in completions.values()), Counter())


def check_equal_to_plain_sampling(loaded, count, rows):
    plain, speculating = (LocalSampler(loaded, max_rows=rows, speculation=choice) for choice in (False, True))
    total = Counter()
    requests = requests_of_groups(count, seed=rows)
    for turn in range(2):
        expected, completions = run(plain, requests), run(speculating, requests)
        assert_equal(completions, expected, 1e-10)
        assert work_of(expected)["passes"] == work_of(expected)["tokens"]
        total += work_of(completions)
        requests = [
            request(
                sent_request.id,
                sent_request.prompt_ids + completions[sent_request.id].ids + (4, 5),
                seed=turn,
                episode=sent_request.episode,
            )
            for sent_request in requests
        ]
    return total


@pytest.mark.parametrize("family", FAMILIES)
def test_same_seeds_give_the_tokens_of_plain_sampling(family):
    total = check_equal_to_plain_sampling(policy(family), 96, rows=7)
    assert 0 < total["accepted"] < total["drafted"]
    assert total["passes"] < 0.9 * total["tokens"]


@pytest.mark.nightly
def test_ten_thousand_sequences_equal_those_of_plain_sampling():
    total = sum((check_equal_to_plain_sampling(policy(seed=n), 500, rows=1 + 5 * n) for n in range(10)), Counter())
    assert 0 < total["accepted"] < total["drafted"]


def test_any_draft_gives_the_tokens_of_plain_sampling(monkeypatch):
    """Drafts of random length and content, partly right: tokens, log-probs, keys and values stay the same."""
    loaded = policy()
    requests = requests_of_groups(40)
    plain, speculating = LocalSampler(loaded, max_rows=16, speculation=False), LocalSampler(loaded, max_rows=16)
    expected = run(plain, requests)
    generator = random.Random(0)
    complete = {request.prompt_ids + expected[request.id].ids for request in requests}

    def propose(histories, limits):
        made = []
        for history, limit in zip(histories, limits, strict=True):
            right = [s for s in complete if list(s[: len(history.tokens)]) == history.tokens]
            draft = list(generator.choice(right)[len(history.tokens) :])[: generator.randint(0, limit)]
            if draft and generator.random() < 0.5:
                draft[generator.randrange(len(draft))] = generator.randrange(40)
            made.append([drafts.Guess(token, 0.5, ("test", 0)) for token in draft])
        return made

    monkeypatch.setattr(speculating._drafts, "propose", propose)
    completions = run(speculating, requests)
    assert_equal(completions, expected, 1e-10)
    total = work_of(completions)
    assert 0.3 * total["drafted"] < total["accepted"] < 0.9 * total["drafted"]
    for name, context in plain._episodes.items():
        other = speculating._episodes[name]
        assert other.tokens == context.tokens
        for tables, others in ((context.keys, other.keys), (context.values, other.values)):
            for table, speculated in zip(tables, others, strict=True):
                torch.testing.assert_close(table, speculated, rtol=0, atol=1e-10)


def test_speculation_follows_the_softmax_in_float32(monkeypatch):
    """Chi-square tests of 4,000 first tokens, and of those after an accepted and a rejected draft."""
    loaded, count, temperature, likely = policy(dtype=torch.float32), 4000, 0.1, 37
    sampler = LocalSampler(loaded)
    guess = drafts.Guess(likely, 0.5, ("test", 0))
    monkeypatch.setattr(sampler._drafts, "propose", lambda histories, limits: [[guess] * limit for limit in limits])
    options = {"temperature": temperature, "max_tokens": 2}
    completions = run(sampler, [request(str(n), (1, 2, 3), seed=n, **options) for n in range(count)])
    first = Counter(completion.ids[0] for completion in completions.values())
    assert work_of(completions)["accepted"] == first[likely] > count / 20
    other = next(token for token, _ in first.most_common() if token not in {likely, 2, 39})  # those end a completion
    engine = LocalEngine(loaded, OptimizerSettings(), temperature=temperature)
    for prompt in ((1, 2, 3), (1, 2, 3, likely), (1, 2, 3, other)):
        samples = [(1, 2, 3, *completion.ids) for completion in completions.values()]
        counts = Counter(sample[len(prompt)] for sample in samples if sample[: len(prompt)] == prompt)
        turns = [Turn(str(token), 0, prompt, (token,)) for token in range(40)]
        means = [counts.total() * math.exp(float(row[0])) for row in engine.logprobs(turns)]
        often = [token for token, mean in enumerate(means) if mean >= 5]
        rest = (counts.total() - sum(counts[token] for token in often), counts.total() - sum(means[t] for t in often))
        cells = [*((counts[token], means[token]) for token in often), *([rest] if rest[1] > 5 else [])]
        assert len(cells) > 10
        chi_square = sum((seen - mean) ** 2 / mean for seen, mean in cells)
        # Below the 99.9% quantile for any number of cells up to 40 (Wilson and Hilferty); the seeds are fixed.
        freedom = len(cells) - 1
        assert chi_square < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


def test_completions_with_drafts_end_at_the_first_stop():
    loaded = LoadedPolicy(tiny_model(TinyConfig(), TOKENIZER).double(), TOKENIZER, "tree")
    loaded.model.generation_config.eos_token_id = TOKENIZER.eos_token_id
    prompt = TOKENIZER.encode("hello")
    requests = [
        request(str(n), prompt, seed=n % 12, temperature=0.5, max_tokens=60 + n % 7, stop=("q",)) for n in range(48)
    ]
    expected = run(LocalSampler(loaded, max_rows=4, speculation=False), requests)
    completions = run(LocalSampler(loaded, max_rows=4), requests)
    assert_equal(completions, expected, 1e-10)
    assert work_of(completions)["accepted"] > 0
    assert {completion.end for completion in completions.values()} == set(CompletionEnd)


def test_greedy_decoding_is_the_same_with_drafts():
    loaded = policy()
    requests = [request(str(n), (1, 2, n % 3), seed=n, top_k=1, max_tokens=20) for n in range(24)]
    expected = run(LocalSampler(loaded, training=False, max_rows=4, speculation=False), requests)
    completions = run(LocalSampler(loaded, training=False, max_rows=4), requests)
    assert_equal(completions, expected, 1e-10)
    assert work_of(completions)["passes"] < 0.5 * work_of(completions)["tokens"]


def test_the_same_seeds_give_the_same_passes_and_bits():
    loaded = policy(dtype=torch.float32)
    results = [run(LocalSampler(loaded, max_rows=8), requests_of_groups(48)) for _ in range(2)]
    assert results[0] == results[1]


def test_drafts_from_earlier_turns_save_passes_and_change_no_token():
    loaded = policy()
    requests = requests_of_groups(40, temperature=0.1)
    plain = run(LocalSampler(loaded, speculation=False), requests)
    earlier = [Turn(request.id, 0, request.prompt_ids, plain[request.id].ids) for request in requests]
    passes = []
    for turns in ([], earlier):
        sampler = LocalSampler(loaded)
        sampler.draft_from(turns)
        completions = run(sampler, requests)
        assert_equal(completions, plain, 1e-10)
        passes.append(work_of(completions)["passes"])
    assert passes[1] < passes[0]
