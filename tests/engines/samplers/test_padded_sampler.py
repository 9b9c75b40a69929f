import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from engines.examples import END, TOKENIZER, many_requests, policy, request, run
from models.examples import FAMILIES
from seeupo.engines.local import LocalEngine
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.engines.samplers.local import LocalSampler
from seeupo.engines.samplers.padded import PaddedSampler, local_sampler
from seeupo.models.loading import LoadedPolicy
from seeupo.types import CompletionEnd, Turn


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fast_sampler_and_its_plain_twin_sample_the_same(family):
    loaded = policy(family)
    requests = many_requests(40)
    fast, plain = run(LocalSampler(loaded), requests), run(PaddedSampler(loaded, max_rows=7), requests)
    for each in requests:
        assert fast[each.id].ids == plain[each.id].ids
        assert fast[each.id].end == plain[each.id].end
        assert fast[each.id].logprobs == pytest.approx(plain[each.id].logprobs, abs=1e-10)
    assert {completion.end for completion in plain.values()} == {CompletionEnd.END_OF_TURN, CompletionEnd.LENGTH}


def learned_positions() -> LoadedPolicy:
    """A GPT-2, whose layers the fast sampler does not know and which has no place behind its 32nd."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2, eos_token_id=END, bos_token_id=0)
    return LoadedPolicy(GPT2LMHeadModel(config).double().eval(), TOKENIZER, "test", "padded")


def test_a_model_of_an_unknown_family_is_sampled_and_trained():
    loaded = learned_positions()
    sampler = local_sampler(loaded)
    assert isinstance(sampler, PaddedSampler)
    assert isinstance(local_sampler(policy()), LocalSampler)
    # The first rows are at the last place of the model while the others still go on.
    requests = [request("long", range(1, 21)), *many_requests(12), request("longer", (1, 2), max_tokens=30)]
    found = run(sampler, requests)
    turns = [Turn(each.id, 0, each.prompt_ids, found[each.id].ids) for each in requests]
    engine = LocalEngine(loaded, OptimizerSettings(), temperature=0.8, row_tokens=64)
    for turn, row in zip(turns, engine.logprobs(turns), strict=True):
        assert list(found[turn.trajectory].logprobs) == pytest.approx(row.tolist(), abs=1e-10)


def test_stop_strings_end_a_turn_and_keep_their_tokens():
    loaded = policy()
    free = run(PaddedSampler(loaded), [request("a", (1, 2, 3))])["a"]
    word = TOKENIZER.decode(free.ids[2:3])
    stopped = run(PaddedSampler(loaded), [request("a", (1, 2, 3), stop=(word,))])["a"]
    assert stopped.end == CompletionEnd.STOP_STRING
    assert stopped.ids == free.ids[: len(stopped.ids)]
    assert word in TOKENIZER.decode(stopped.ids)


def test_weights_change_between_requests_only():
    loaded, other = policy(), policy(seed=1)
    sampler = PaddedSampler(loaded)
    sampler.submit(request("a", (1, 2)))
    with pytest.raises(RuntimeError, match="poll until all have finished"):
        sampler.load_weights([], 1)
    while not sampler.poll():
        pass
    sampler.load_weights(other.model.named_parameters(), 3)
    after = run(sampler, [request("b", (1, 2))])["b"]
    assert after.version == 3
    assert after.ids == run(LocalSampler(other), [request("b", (1, 2))])["b"].ids
    with pytest.raises(ValueError, match="the model has no weight 'foreign'"):
        sampler.load_weights([("foreign", torch.zeros(1))], 4)


def test_impossible_requests_are_refused():
    sampler = PaddedSampler(policy())
    with pytest.raises(ValueError, match="a prompt without tokens"):
        sampler.submit(request("a", ()))
    with pytest.raises(ValueError, match="the model takes 128"):
        sampler.submit(request("a", range(1, 30), max_tokens=100))
    with pytest.raises(ValueError, match="truncated sampling"):
        sampler.submit(request("a", (1,), top_k=3))
    assert sampler.poll() == []
