import math
import random
from collections import Counter

import pytest
import torch

from engines.examples import TOKENIZER, check_cancel, many_requests, policy, request, run
from models.examples import FAMILIES
from seeupo.config.model_settings import TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.inference import kv_cache
from seeupo.inference.local_sampler import LocalSampler
from seeupo.models.loading import LoadedPolicy
from seeupo.models.tiny import tiny_model
from seeupo.types import CompletionEnd, Turn


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_tokens_alone_and_in_any_batch(family):
    loaded = policy(family)
    requests = many_requests(64)
    together = run(LocalSampler(loaded), requests)
    few_rows = run(LocalSampler(loaded, max_rows=3), requests)
    for sent_request in requests:
        alone = run(LocalSampler(loaded), [sent_request])[sent_request.id]
        assert together[sent_request.id].ids == alone.ids == few_rows[sent_request.id].ids
        assert together[sent_request.id].logprobs == pytest.approx(alone.logprobs, abs=1e-12)
    assert len({completion.ids for completion in together.values()}) > 40


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_equal_the_engines(family, dtype, tolerance):
    loaded = policy(family, dtype)
    requests = many_requests()
    completions = run(LocalSampler(loaded), requests)
    engine = LocalEngine(loaded, OptimizerSettings(), temperature=0.8)
    turns = [Turn(request.id, 0, request.prompt_ids, completions[request.id].ids) for request in requests]
    for turn, row in zip(turns, engine.logprobs(turns), strict=True):
        assert list(completions[turn.trajectory].logprobs) == pytest.approx(row.tolist(), abs=tolerance)


def test_each_distinct_token_of_the_prompts_is_computed_once():
    sampler = LocalSampler(policy())
    run(sampler, many_requests())
    # Six prompts with 3, 5, ..., 13 tokens, each a prefix of the next; the last token is the first input of its row.
    assert sampler.prefilled_tokens == 12


def test_a_shared_system_prompt_is_computed_once_for_all_tasks_groups_and_turns():
    loaded = policy()
    sampler = LocalSampler(loaded)
    engine = LocalEngine(loaded, OptimizerSettings(), temperature=0.8)
    system = tuple(random.Random(0).choices(range(39), k=60))
    tasks = [(task, 1, 2, task) for task in range(16)]
    histories = {(task, member): system + tasks[task] for task in range(16) for member in range(2)}
    added = len(system) + sum(len(task) - 1 for task in tasks)
    for turn in range(3):
        before = sampler.prefilled_tokens
        requests = [
            request(f"{turn}-{key}", history, seed=hash(key), episode=str(key), max_tokens=5)
            for key, history in histories.items()
        ]
        completions = run(sampler, requests)
        assert sampler.prefilled_tokens - before == added
        assert sum(completion.work["prefilled"] for completion in completions.values()) == added
        turns = [Turn(request.id, 0, request.prompt_ids, completions[request.id].ids) for request in requests]
        for sent_request, row in zip(requests, engine.logprobs(turns), strict=True):
            assert list(completions[sent_request.id].logprobs) == pytest.approx(row.tolist(), abs=1e-10)
        histories = {
            key: request.prompt_ids + completions[request.id].ids + (3, 4)
            for key, request in zip(histories, requests, strict=True)
        }
        # The last sampled token, which was never an input, and the first of two new ones.
        added = 2 * len(histories)


def test_episodes_are_cached_from_turn_to_turn():
    loaded = policy()
    sampler = LocalSampler(loaded)
    engine = LocalEngine(loaded, OptimizerSettings(), temperature=0.8)
    history, filled = tuple(range(1, 9)), []
    for turn in range(4):
        before = sampler.prefilled_tokens
        completion = run(sampler, [request("x", history, seed=turn, episode="one", max_tokens=5)])["x"]
        filled.append(sampler.prefilled_tokens - before)
        (row,) = engine.logprobs([Turn("x", turn, history, completion.ids)])
        assert list(completion.logprobs) == pytest.approx(row.tolist(), abs=1e-10)
        action = completion.ids
        # After turn 1 a thought of two tokens is removed.
        history += (*action[2:], 3) if turn == 1 else (*action, 4, 5, 6)
    assert filled[0] == 7
    # The last sampled token was never an input; of three new tokens the last is the first input of the next turn.
    assert filled[1] == filled[3] == 3
    assert 0 < filled[2] <= 4


@pytest.mark.parametrize("family", FAMILIES)
def test_observations_computed_together_equal_those_computed_one_by_one(family, monkeypatch):
    """Rows continue at different times, after observations that are short and long, so they are a part of the batch."""
    loaded = policy(family)
    draw = random.Random(0)
    observations = [tuple(draw.choices(range(39), k=draw.choice([1, 2, 5, 40]))) for _ in range(24)]

    def two_turns(short_tokens):
        monkeypatch.setattr(kv_cache, "SHORT_TOKENS", short_tokens)
        sampler, completions = LocalSampler(loaded, max_rows=6), {}
        for number in range(12):
            start = (1, 2, 3, *range(number % 3))
            sampler.submit(request(f"{number}.0", start, seed=number, episode=str(number), max_tokens=1 + number))
        while len(completions) < 24:
            for completion in sampler.poll():
                completions[completion.id] = completion
                number, turn = map(int, completion.id.split("."))
                if turn == 0:
                    history = (1, 2, 3, *range(number % 3), *completion.ids, *observations[number])
                    sampler.submit(request(f"{number}.1", history, seed=99 + number, episode=str(number), max_tokens=5))
        return completions

    apart, together = two_turns(0), two_turns(8)
    assert {name: completion.ids for name, completion in apart.items()} == {
        name: completion.ids for name, completion in together.items()
    }
    for name, completion in apart.items():
        assert together[name].logprobs == pytest.approx(completion.logprobs, abs=1e-10)
        assert together[name].work == completion.work


def test_rewritten_history_is_not_taken_from_the_cache():
    loaded = policy()
    sampler = LocalSampler(loaded)
    run(sampler, [request("a", (1, 2, 3, 4), episode="one")])
    again = run(sampler, [request("b", (9, 8, 7), seed=5, episode="one")])["b"]
    assert again.ids == run(LocalSampler(loaded), [request("b", (9, 8, 7), seed=5)])["b"].ids


def test_prompt_may_have_a_single_token():
    loaded = policy()
    completion = run(LocalSampler(loaded), [request("a", (1,))])["a"]
    (row,) = LocalEngine(loaded, OptimizerSettings(), temperature=0.8).logprobs([Turn("a", 0, (1,), completion.ids)])
    assert list(completion.logprobs) == pytest.approx(row.tolist(), abs=1e-10)


def test_sampling_follows_the_softmax():
    """A chi-square test of 4,000 first tokens against the model's own probabilities."""
    loaded = policy()
    count = 4000
    completions = run(LocalSampler(loaded), [request(str(n), (1, 2, 3), seed=n, max_tokens=1) for n in range(count)])
    counts = Counter(completion.ids[0] for completion in completions.values())
    turns = [Turn(str(token), 0, (1, 2, 3), (token,)) for token in range(40)]
    engine = LocalEngine(loaded, OptimizerSettings(), temperature=0.8)
    expected = [count * math.exp(float(row[0])) for row in engine.logprobs(turns)]
    assert sum(expected) == pytest.approx(count)
    chi_square = sum((counts[token] - mean) ** 2 / mean for token, mean in enumerate(expected))
    assert chi_square < 73  # 39 degrees of freedom: exceeded once in a thousand seeds, and these seeds are fixed


def test_finished_rows_are_replaced_by_waiting_requests():
    sampler = LocalSampler(policy(), max_rows=2)
    for sent_request in [
        request("long", (1, 2), max_tokens=9),
        *(request(f"s{n}", (3, n), max_tokens=1) for n in range(4)),
    ]:
        sampler.submit(sent_request)
    order = [completion.id for _ in range(9) for completion in sampler.poll()]
    assert order[:4] == ["s0", "s1", "s2", "s3"]


def test_completions_end_at_stop_strings_end_tokens_and_limits():
    config = TinyConfig()
    loaded = LoadedPolicy(tiny_model(config, TOKENIZER).double(), TOKENIZER, "tree")
    loaded.model.generation_config.eos_token_id = TOKENIZER.eos_token_id
    prompt = TOKENIZER.encode("hello")
    completions = run(
        LocalSampler(loaded), [request(str(n), prompt, seed=n, max_tokens=400, stop=("q",)) for n in range(24)]
    )
    ends = Counter(completion.end for completion in completions.values())
    assert ends[CompletionEnd.END_OF_TURN] > 0
    assert ends[CompletionEnd.STOP_STRING] > 0
    for completion in completions.values():
        text = TOKENIZER.decode(completion.ids)
        if completion.end is CompletionEnd.STOP_STRING:
            assert "q" in text
            assert "q" not in TOKENIZER.decode(completion.ids[:-1])
        elif completion.end is CompletionEnd.END_OF_TURN:
            assert completion.ids[-1] == TOKENIZER.eos_token_id
    short = run(LocalSampler(loaded), [request("x", prompt, max_tokens=2)])["x"]
    assert (len(short.ids), short.end) == (2, CompletionEnd.LENGTH)


def test_cached_keys_and_values_are_limited():
    loaded = policy()
    per_token = LocalSampler(loaded)._cache.bytes_per_token
    sampler = LocalSampler(loaded, cache_bytes=80 * per_token, max_rows=2)
    requests = [request(str(n), (*range(n, n + 8), n), seed=n, episode=str(n)) for n in range(10)]
    completions = run(sampler, requests)
    assert 0 < sampler._tree.tokens + sum(len(context.tokens) for context in sampler._episodes.values()) <= 80
    assert {name: completion.ids for name, completion in completions.items()} == {
        name: completion.ids for name, completion in run(LocalSampler(loaded), requests).items()
    }
    latest = next(reversed(sampler._episodes))
    assert "0" not in sampler._episodes
    for name, prefilled in ((latest, 2), ("0", 10 + len(completions["0"].ids))):
        history = requests[int(name)].prompt_ids + completions[name].ids + (1, 2)
        (again,) = run(sampler, [request("again", history, episode=name)]).values()
        assert again.work["prefilled"] == prefilled


def test_truncated_sampling_is_refused_in_training():
    loaded = policy()
    with pytest.raises(ValueError, match=r"top_p=0\.9, top_k=0: truncated sampling"):
        LocalSampler(loaded).submit(request("a", (1, 2), top_p=0.9))
    greedy = run(LocalSampler(loaded, training=False), [request(str(n), (1, 2), seed=n, top_k=1) for n in range(5)])
    assert len({completion.ids for completion in greedy.values()}) == 1
    assert all(value == 0 for completion in greedy.values() for value in completion.logprobs)
    wide = run(LocalSampler(loaded, training=False), [request(str(n), (1, 2), seed=n, top_p=0.5) for n in range(20)])
    free = run(LocalSampler(loaded), [request(str(n), (1, 2), seed=n) for n in range(20)])
    assert len({c.ids[0] for c in wide.values()}) < len({c.ids[0] for c in free.values()})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("a", ()), "request a has an empty prompt"),
        (
            request("a", range(30), max_tokens=120),
            "up to 120 new ones; the model.s context is 128",
        ),
        (request("a", (1,), temperature=0.0), r"temperature = 0\.0: expected a positive"),
        (request("a", (1,), max_tokens=0), "max_tokens = 0"),
        (request("a", (1,), top_p=1.5), r"top_p = 1\.5"),
        (request("a", (1,), top_k=-1), "top_k = -1"),
    ],
)
def test_invalid_requests_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        LocalSampler(policy()).submit(bad)


@pytest.mark.parametrize("max_rows", [64, 5])
@pytest.mark.parametrize("polls", [0, 1, 4])
def test_cancelled_requests_give_no_completion_and_others_are_unaffected(max_rows, polls):
    requests = [*many_requests(), *(request(f"e{n}", (1, 2, n), seed=n, episode="e") for n in range(3))]
    sampler = LocalSampler(policy(), max_rows=max_rows)
    expected = run(LocalSampler(policy()), requests)
    check_cancel(sampler, requests, expected, polls)
    completions = run(sampler, requests)
    assert {name: each.ids for name, each in completions.items()} == {name: each.ids for name, each in expected.items()}
