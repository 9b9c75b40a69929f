"""Computation in bfloat16 with float32 weights, on models of at most 0.1 million weights: bfloat16 is slow on CPUs."""

from dataclasses import replace
from statistics import mean

import pytest
import torch

from engines.examples import TOKENIZER, many_requests, objective_for, request, run, trajectories, weights
from models.examples import FAMILIES, small_model
from seeupo.algorithms import PPO, SeeUPO
from seeupo.config.model_settings import LoraSettings, TinyConfig
from seeupo.config.optimizer_settings import CriticOptimizerSettings, CriticSettings, OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.inference.decoder import Decoder
from seeupo.inference.local_sampler import LocalSampler
from seeupo.inference.padded_sampler import PaddedSampler
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.models.precision import cast_weights
from seeupo.runs.metric_history import GAP_BOUNDS
from seeupo.training.metrics import sampler_gap
from seeupo.types import Trajectory, Turn, turns_of

BOUND = 0.01
"""Largest difference of a log-prob in bfloat16 to the same in float32, on these models, whose logits are below 1."""
TURNS = turns_of(trajectories())


def mixed(family="llama", *, packing="tree", weights=torch.float32) -> LoadedPolicy:
    model = small_model(family, torch.float32)
    cast_weights(model, weights)
    return LoadedPolicy(model, TOKENIZER, packing, compute_dtype=torch.bfloat16)


def engine(policy: LoadedPolicy | None = None, *, learning_rate=1e-2, **options) -> LocalEngine:
    settings = OptimizerSettings(learning_rate=learning_rate)
    return LocalEngine(policy or mixed(), settings, **{"batch_tokens": 64, "row_tokens": 32, **options})


def logprobs(local: LocalEngine, **options) -> torch.Tensor:
    actual = torch.cat(local.logprobs(TURNS, **options))
    assert actual.dtype == torch.float32
    return actual


@pytest.mark.parametrize("packing", ["tree", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_near_those_of_float32(family, packing):
    policy = mixed(family, packing=packing)
    exact = logprobs(engine(replace(policy, compute_dtype=None)))
    difference = (logprobs(engine(policy)) - exact).abs()
    assert 0 < float(difference.max()) < BOUND
    assert float(difference.mean()) < BOUND / 5
    frozen = logprobs(engine(mixed(family, packing=packing, weights=torch.bfloat16)))
    assert float((frozen - exact).abs().max()) < BOUND


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_the_gap_between_sampler_and_trainer_raises_no_alarm(stored):
    policy = mixed(weights=stored)
    requests = [request(str(n), (1, 2, n), seed=n, max_tokens=24, temperature=1.0) for n in range(16)]
    completions = run(LocalSampler(policy), requests)
    sampled = [
        Trajectory(
            request.id,
            "",
            "",
            (Turn(request.id, 0, request.prompt_ids, completions[request.id].ids, completions[request.id].logprobs),),
            0.0,
        )
        for request in requests
    ]
    gap = sampler_gap(engine(policy), sampled)
    assert 1e-5 < gap < GAP_BOUNDS["bfloat16"] / 10, gap


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}], ids=["plain", "checkpointing"])
def test_gradients_are_float32_and_near_those_of_float32(options, monkeypatch):
    gradients = []
    for policy in (mixed(), replace(mixed(), compute_dtype=None)):
        local = engine(policy, **options)
        monkeypatch.setattr(local._optimizer, "step", lambda *_, **__: {})
        local.step(TURNS, objective_for(local, TURNS), normalizer=20)
        assert all(parameter.grad.dtype == torch.float32 for parameter in policy.model.parameters())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.model.parameters()]))
    assert float((gradients[0] - gradients[1]).norm() / gradients[1].norm()) < 0.03


def test_weights_move_at_a_learning_rate_at_which_bfloat16_weights_do_not():
    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        local = engine(mixed(weights=dtype), learning_rate=1e-6)
        start = weights(local)
        for _ in range(3):
            local.step(TURNS, objective_for(local, TURNS), normalizer=20)
        large = start.abs() > 1e-3  # numbers near 0 have a finer resolution
        moved[dtype] = float((weights(local) != start)[large].float().mean())
    assert moved[torch.float32] > 0.9
    assert moved[torch.bfloat16] == 0


@pytest.mark.parametrize("sampler", [LocalSampler, PaddedSampler])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=["float32-weights", "bfloat16-weights"])
def test_samplers_agree_with_the_engine(family, sampler, stored):
    policy, dtypes = mixed(family, weights=stored), set()
    policy.model.get_output_embeddings().register_forward_hook(lambda _, __, logits: dtypes.add(logits.dtype))
    completions = run(sampler(policy), many_requests())
    turns = [Turn(request.id, 0, request.prompt_ids, completions[request.id].ids) for request in many_requests()]
    ours = torch.cat(engine(policy, temperature=0.8).logprobs(turns))
    theirs = torch.tensor([logprob for turn in turns for logprob in completions[turn.trajectory].logprobs])
    assert float((ours - theirs).abs().max()) < BOUND
    assert dtypes == {torch.bfloat16}


def test_the_cache_of_the_sampler_has_the_type_of_the_computation():
    sampler = LocalSampler(mixed())
    run(sampler, many_requests(6))
    cached = [*sampler._cache.keys, *sampler._cache.values]
    for segment in sampler._tree._segments():
        cached += [*segment.keys, *segment.values]
    assert {tensor.dtype for tensor in cached} == {torch.bfloat16}


def test_temperatures_are_not_rounded(monkeypatch):
    temperatures = []
    probabilities = Decoder.probabilities
    monkeypatch.setattr(
        Decoder, "probabilities", lambda *arguments: temperatures.append(arguments[-1]) or probabilities(*arguments)
    )
    run(LocalSampler(mixed(weights=torch.bfloat16)), [request("x", (1, 2, 3), temperature=0.9)])
    assert torch.equal(temperatures[0], torch.tensor([0.9]))


def test_lora_trains_float32_adapters_on_frozen_bfloat16_weights(tmp_path):
    settings = {"lora": LoraSettings(rank=2), "reference": True}
    local = engine(mixed(weights=torch.bfloat16), **settings)
    start = {name: weight.detach().clone() for name, weight in local.policy.model.named_parameters()}
    before = logprobs(local)
    for _ in range(2):
        local.step(TURNS, objective_for(local, TURNS), normalizer=20)
    for name, weight in local.policy.model.named_parameters():
        assert weight.dtype == (torch.float32 if "lora_" in name else torch.bfloat16)
        assert torch.equal(weight, start[name]) is ("lora_" not in name)
    assert torch.equal(logprobs(local, policy="reference"), before)
    assert float((logprobs(local) - before).abs().max()) > BOUND
    local.save(tmp_path)
    again = engine(mixed(weights=torch.bfloat16), **settings)
    again.load(tmp_path)
    assert torch.equal(logprobs(again), logprobs(local))


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
def test_reference_policy_in_bfloat16(compute_dtype, tmp_path):
    policy = replace(mixed(), compute_dtype=compute_dtype)
    local = engine(policy, reference=True, reference_dtype=torch.bfloat16)
    before = logprobs(local)
    frozen = logprobs(local, policy="reference")
    assert 0 < float((frozen - before).abs().max()) < BOUND
    assert {tensor.dtype for tensor in local._reference.tensors().values()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in local._reference.copy.buffers()} == {torch.float32}
    local.step(TURNS, objective_for(local, TURNS), normalizer=20)
    assert torch.equal(logprobs(local, policy="reference"), frozen)
    local.save(tmp_path)
    again = engine(replace(mixed(), compute_dtype=compute_dtype), reference=True, reference_dtype=torch.bfloat16)
    again.load(tmp_path)
    assert torch.equal(logprobs(again), logprobs(local))
    assert torch.equal(logprobs(again, policy="reference"), frozen)


@pytest.mark.parametrize("backbone", ["own", "policy"])
def test_critic_has_float32_weights_and_values(backbone):
    optimizer = CriticOptimizerSettings(learning_rate=1e-2)
    critic = CriticSettings(backbone=backbone, optimizer=optimizer)
    local = engine(mixed(weights=torch.bfloat16), lora=LoraSettings(rank=2), critic=critic)
    assert {weight.dtype for weight in local._critic.trained.values()} == {torch.float32}
    batch = trajectories()
    for _ in range(3):
        PPO().update(local, batch, generator=torch.Generator().manual_seed(0))
    values = torch.cat(local.values(batch))
    assert values.dtype == torch.float32
    assert not torch.equal(values, values.bfloat16().float())


def test_training_improves():
    """Half of the tokens are even; after 20 iterations that reward even tokens, most of them are."""
    policy = load_policy(
        "tiny", dtype="bfloat16", tiny=TinyConfig(width=64, layers=2, heads=4, context=64, vocabulary=259)
    )
    assert 0.8e5 < sum(parameter.numel() for parameter in policy.model.parameters()) < 1.2e5
    local = LocalEngine(policy, OptimizerSettings(learning_rate=3e-3, beta1=0.0))
    sampler = LocalSampler(policy)
    rewards = []
    for iteration in range(20):
        local.begin_iteration(iteration)
        sampler.sync(local, iteration)
        seeds = range(32 * iteration, 32 * iteration + 32)
        requests = [request(str(n), range(10, 14 + n % 4), n, max_tokens=6, temperature=1.0) for n in seeds]
        batch = []
        for name, completion in run(sampler, requests).items():
            prompt = requests[int(name) % 32].prompt_ids
            reward = sum(token % 2 == 0 for token in completion.ids) / len(completion.ids)
            task = str(int(name) % 4)
            batch.append(Trajectory(name, task, task, (Turn(name, 0, prompt, completion.ids),), reward))
        rewards.append(mean(trajectory.reward for trajectory in batch))
        SeeUPO().update(local, batch)
    assert 0.35 < mean(rewards[:2]) < 0.65
    assert mean(rewards[-2:]) > 0.8
