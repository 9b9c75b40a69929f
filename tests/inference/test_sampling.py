import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.examples import policy, request, run
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.inference.local_sampler import LocalSampler
from seeupo.inference.sampling import CHUNK, inverse_cdf
from seeupo.types import Turn


@given(
    size=st.sampled_from([1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7]),
    seed=st.integers(0, 1000),
    impossible=st.booleans(),
)
def test_sampling_by_chunks_equals_one_cumulative_sum(size, seed, impossible):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(6, size, generator=generator, dtype=torch.float64)
    if impossible:
        logits[:, 1::2] = -torch.inf
    probabilities = logits.softmax(1)
    uniform = random.Random(seed).random
    uniforms = [uniform() for _ in range(6)]
    expected = torch.searchsorted(probabilities.cumsum(1), torch.tensor(uniforms, dtype=torch.float64)[:, None])
    assert torch.equal(inverse_cdf(probabilities, uniforms), expected[:, 0].clamp(max=size - 1))


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_tokens_of_probability_zero_are_never_sampled(uniform):
    probabilities = torch.zeros(1, 600)
    probabilities[0, 300] = 1.0
    assert inverse_cdf(probabilities, [uniform]).tolist() == [300]


def test_rows_with_and_without_shared_prompts_are_sampled_together():
    """A prompt of one token has nothing to share: such rows are placed between those of two groups."""
    loaded = policy()
    prompts = [(1,), (5, 6, 7), (2,), (5, 6, 7), (8, 9), (5, 6, 7), (8, 9)]
    requests = [request(str(n), prompt, seed=n) for n, prompt in enumerate(prompts)]
    together = run(LocalSampler(loaded), requests)
    for sent_request in requests:
        assert together[sent_request.id].ids == run(LocalSampler(loaded), [sent_request])[sent_request.id].ids


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_attention_over_a_chain_of_shared_segments_equals_plain_attention(dtype, tolerance):
    """A system prompt of 40 tokens, two groups of 34, and ends of 33 and 3; some requests wait for a row."""
    loaded, generator = policy(dtype=dtype), random.Random(0)

    def tokens(count):
        return tuple(generator.choices(range(39), k=count))

    system = tokens(40)
    groups = [system + tokens(34) for _ in range(2)]
    prompts = [prompt for group in groups for prompt in (group + tokens(33), group + tokens(3))]
    requests = [request(str(n), prompts[n % 4], seed=n, temperature=0.2, max_tokens=8) for n in range(24)]
    sampler = LocalSampler(loaded, max_rows=9)
    completions = run(sampler, requests)
    assert sampler.prefilled_tokens == 40 + 2 * 34 + 2 * (32 + 2)
    engine = LocalEngine(loaded, OptimizerSettings(), temperature=0.2)
    turns = [Turn(request.id, 0, request.prompt_ids, completions[request.id].ids) for request in requests]
    for sent_request, row in zip(requests, engine.logprobs(turns), strict=True):
        assert list(completions[sent_request.id].logprobs) == pytest.approx(row.tolist(), abs=tolerance)
