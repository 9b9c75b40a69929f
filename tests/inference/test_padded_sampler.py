import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from engines.examples import END, TOKENIZER, check_cancel, many_requests, policy, request, run
from models.examples import FAMILIES
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.inference import make_sampler
from seeupo.inference.local_sampler import LocalSampler
from seeupo.inference.padded_sampler import PaddedSampler
from seeupo.models.loading import LoadedPolicy
from seeupo.types import CompletionEnd, Turn


@pytest.mark.parametrize("family", FAMILIES)
def test_both_samplers_give_the_same_completions(family):
    loaded = policy(family)
    requests = many_requests(40)
    fast, padded = run(LocalSampler(loaded), requests), run(PaddedSampler(loaded, max_rows=7), requests)
    for sent_request in requests:
        assert fast[sent_request.id].ids == padded[sent_request.id].ids
        assert fast[sent_request.id].end == padded[sent_request.id].end
        assert fast[sent_request.id].logprobs == pytest.approx(padded[sent_request.id].logprobs, abs=1e-10)
    assert {completion.end for completion in padded.values()} == {CompletionEnd.END_OF_TURN, CompletionEnd.LENGTH}


def learned_positions() -> LoadedPolicy:
    """A GPT-2, which LocalSampler does not support and which has only 32 positions."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2, eos_token_id=END, bos_token_id=0)
    return LoadedPolicy(GPT2LMHeadModel(config).double().eval(), TOKENIZER, "padded")


def test_models_of_other_families_are_sampled_and_trained():
    loaded = learned_positions()
    sampler = make_sampler(loaded)
    assert isinstance(sampler, PaddedSampler)
    assert isinstance(make_sampler(policy()), LocalSampler)
    # The first rows reach the last position of the model while others continue.
    requests = [request("long", range(1, 21)), *many_requests(12), request("longer", (1, 2), max_tokens=30)]
    completions = run(sampler, requests)
    turns = [Turn(request.id, 0, request.prompt_ids, completions[request.id].ids) for request in requests]
    engine = LocalEngine(loaded, OptimizerSettings(), temperature=0.8, row_tokens=64)
    for turn, row in zip(turns, engine.logprobs(turns), strict=True):
        assert list(completions[turn.trajectory].logprobs) == pytest.approx(row.tolist(), abs=1e-10)


def test_stop_strings_end_a_turn_and_keep_their_tokens():
    loaded = policy()
    free = run(PaddedSampler(loaded), [request("a", (1, 2, 3))])["a"]
    word = TOKENIZER.decode(free.ids[2:3])
    stopped = run(PaddedSampler(loaded), [request("a", (1, 2, 3), stop=(word,))])["a"]
    assert stopped.end == CompletionEnd.STOP_STRING
    assert stopped.ids == free.ids[: len(stopped.ids)]
    assert word in TOKENIZER.decode(stopped.ids)


def test_invalid_requests_are_refused():
    sampler = PaddedSampler(policy())
    with pytest.raises(ValueError, match="an empty prompt"):
        sampler.submit(request("a", ()))
    with pytest.raises(ValueError, match="context is 128"):
        sampler.submit(request("a", range(1, 30), max_tokens=100))
    with pytest.raises(ValueError, match="truncated sampling"):
        sampler.submit(request("a", (1,), top_k=3))
    assert sampler.poll() == []


@pytest.mark.parametrize("max_rows", [64, 5])
@pytest.mark.parametrize("polls", [0, 1, 4])
def test_cancelled_requests_give_no_completion_and_others_are_unaffected(max_rows, polls):
    requests = many_requests()
    sampler = PaddedSampler(policy(), max_rows=max_rows)
    check_cancel(sampler, requests, run(PaddedSampler(policy()), requests), polls)
    assert not sampler._rows
    assert not sampler._waiting
