"""vLLM as a sampler, compared with the trainer's log-probs."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from engines.examples import check_cancel, request, run
from seeupo.config.model_settings import LoraSettings, TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.distributed.remote_samplers import RemoteSamplers
from seeupo.distributed.vllm_sampler import VllmOptions, VllmSampler, chunks
from seeupo.engines.local import LocalEngine
from seeupo.errors import TrainingError
from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model
from seeupo.types import CompletionEnd, Turn

pytest.importorskip("vllm", reason="vLLM is not installed; `make vllm-test` runs these tests")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

TEMPERATURE = 0.7
CONTEXT = 512


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> VllmOptions:
    folder = tmp_path_factory.mktemp("model")
    policy = load_policy("tiny", tiny=TinyConfig(width=192, heads=6, layers=2))
    save_model(policy.model, policy.tokenizer, folder)
    return VllmOptions(
        model=str(folder), context_length=CONTEXT, end_tokens=(policy.tokenizer.eos_token_id,), max_rows=16
    )


@pytest.fixture(scope="module")
def sampler(options) -> VllmSampler:
    return VllmSampler(options)


def trainer(options, lora=None) -> LocalEngine:
    return LocalEngine(load_policy(options.model), OptimizerSettings(), temperature=TEMPERATURE, lora=lora)


def move(engine: LocalEngine, seed: int, size: float = 0.05) -> None:
    """Change what is trained by far more than an update would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in engine.policy.model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def requests_of(count: int = 12, **parameters):
    options = {"temperature": TEMPERATURE, "max_tokens": 16, **parameters}
    return [request(str(n), (5, 6, 7, 8 + n % 3), seed=n, **options) for n in range(count)]


def gap(engine: LocalEngine, sampler, requests) -> float:
    """Return the largest difference between the sampler's log-probs and the trainer's."""
    completions = run(sampler, requests)
    turns = [Turn(request.id, 0, request.prompt_ids, completions[request.id].ids) for request in requests]
    return max(
        float((row - torch.tensor(completions[turn.trajectory].logprobs)).abs().max())
        for turn, row in zip(turns, engine.logprobs(turns), strict=True)
    )


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["full", "lora"])
def test_log_probs_equal_the_trainers_after_every_update(sampler, options, lora):
    engine = trainer(options, lora)
    for version in range(1, 4):
        move(engine, version)
        assert gap(engine, sampler, requests_of()) > 1e-2  # the update is large enough to be noticed
        sampler.sync(engine, version)
        assert gap(engine, sampler, requests_of()) < 1e-4
        assert run(sampler, requests_of(1))["0"].version == version


def test_skipped_sync_is_caught_by_the_version_and_by_the_gap(sampler, options):
    engine = trainer(options)
    sampler.sync(engine, 1)
    assert gap(engine, sampler, requests_of()) < 1e-4
    move(engine, 1)
    assert gap(engine, sampler, requests_of()) > 1e-2
    assert {completion.version for completion in run(sampler, requests_of()).values()} == {1}  # the loop expects 2


def test_prefix_cache_is_used_but_never_with_old_weights(sampler, options, monkeypatch):
    cached = []
    original = sampler._completion

    def record(output):
        cached.append(output.num_cached_tokens)
        return original(output)

    monkeypatch.setattr(sampler, "_completion", record)
    engine = trainer(options)
    prompt = torch.randint(5, 90, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    for version in (1, 2):
        move(engine, version)
        sampler.sync(engine, version)
        for n in range(2):
            assert gap(engine, sampler, [request("a", prompt, seed=n, temperature=TEMPERATURE)]) < 1e-4
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] >= 128


def test_completions_end_at_stop_strings_end_tokens_and_limits(sampler, options):
    engine = trainer(options)
    sampler.sync(engine, 1)
    tokenizer = engine.policy.tokenizer
    end = tokenizer.decode([tokenizer.eos_token_id])
    # One of the stop strings is the text of the end token, which counts as the end of the turn all the same.
    completions = run(sampler, requests_of(32, max_tokens=200, temperature=1.0, stop=("q", end)))
    ends = Counter(completion.end for completion in completions.values())
    assert ends[CompletionEnd.END_OF_TURN] > 0
    assert ends[CompletionEnd.STOP_STRING] > 0
    for completion in completions.values():
        assert len(completion.logprobs) == len(completion.ids)
        if completion.end is CompletionEnd.STOP_STRING:
            assert "q" in tokenizer.decode(completion.ids)
            assert "q" not in tokenizer.decode(completion.ids[:-1])
        elif completion.end is CompletionEnd.END_OF_TURN:
            assert completion.ids[-1] == tokenizer.eos_token_id
            assert tokenizer.eos_token_id not in completion.ids[:-1]
    other = next(token for token in tokenizer.all_special_ids if token != tokenizer.eos_token_id)
    special = run(sampler, requests_of(32, max_tokens=200, temperature=1.0, stop=(tokenizer.decode([other]),)))
    stopped = [completion for completion in special.values() if completion.end is CompletionEnd.STOP_STRING]
    assert stopped
    assert {completion.ids[-1] for completion in stopped} == {other}
    short = run(sampler, [request("a", (5, 6), max_tokens=2, seed=3)])["a"]
    assert (len(short.ids), short.end) == (2, CompletionEnd.LENGTH)


def test_the_same_seed_gives_the_same_tokens_alone_and_in_a_batch(sampler, options):
    sampler.sync(trainer(options), 1)
    requests = requests_of(12)
    together = run(sampler, requests)
    for first_request in requests[:4]:
        assert run(sampler, [first_request])[first_request.id].ids == together[first_request.id].ids
    large = replace(requests[0], seed=2**64 + 5)
    assert run(sampler, [large])["0"].ids == run(sampler, [large])["0"].ids
    assert len({completion.ids for completion in together.values()}) > 8


def test_invalid_requests_are_refused(sampler):
    for bad, message in [
        (request("a", (1, 2), top_p=0.9), "truncated sampling"),
        (request("a", (1,) * 500, max_tokens=13), "the model's context is 512"),
        (request("a", ()), "empty prompt"),
        (request("a", (1,), temperature=0.0), "temperature = 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            sampler.submit(bad)
    assert sampler.poll() == []


def test_sync_and_release_are_refused_while_requests_are_running(sampler, options):
    engine = trainer(options)
    sampler.sync(engine, 1)
    sampler.submit(requests_of(1)[0])
    for change in (partial(sampler.sync, engine, 2), sampler.release):
        with pytest.raises(RuntimeError, match="poll until all have finished"):
            change()
    while not sampler.poll():
        pass
    sampler.release()  # does nothing, because no trainer shares its devices
    assert gap(engine, sampler, requests_of()) < 1e-4


def test_cancelled_requests_give_no_completion_and_others_are_unaffected(sampler, options):
    engine = trainer(options)
    sampler.sync(engine, 1)
    check_cancel(sampler, requests_of(), run(sampler, requests_of()), 3)
    sampler.sync(engine, 2)


def test_shared_sampler_sleeps_until_the_next_sync(options, monkeypatch):
    """vLLM's workers keep their memory on CPUs, but all calls are made, and its scheduler is paused."""
    sampler, calls = VllmSampler(replace(options, shared=True)), []
    core = sampler._engine.engine_core
    for name in ("sleep", "wake_up", "collective_rpc"):
        original = getattr(core, name)

        def call(*arguments, name=name, original=original, **keywords):
            calls.append((name, arguments[0]))
            return original(*arguments, **keywords)

        monkeypatch.setattr(core, name, call)
    engine = trainer(options)
    sampler.sync(engine, 1)
    for version in (2, 3):
        calls.clear()
        assert gap(engine, sampler, requests_of(2)) < 1e-4
        sampler.release()
        sampler.release()
        assert sampler._engine.is_sleeping()
        with pytest.raises(RuntimeError, match="expected a sync before the next request"):
            sampler.submit(requests_of(1)[0])
        move(engine, version)
        sampler.sync(engine, version)
        assert not sampler._engine.is_sleeping()
        assert gap(engine, sampler, requests_of()) < 1e-4
        assert calls == [
            ("sleep", 2),
            ("wake_up", ["weights"]),
            ("collective_rpc", "start_weight_update"),
            ("collective_rpc", "update_weights"),
            ("collective_rpc", "finish_weight_update"),
            ("wake_up", ["kv_cache"]),
        ]


def test_weights_are_split_into_chunks():
    weights = [(str(n), torch.zeros(n)) for n in (1, 2, 30, 3, 4)]
    assert [[name for name, _ in chunk] for chunk in chunks(iter(weights), 28)] == [["1", "2"], ["30"], ["3", "4"]]


def make_parallel(options: VllmOptions) -> VllmSampler:
    """Make a sampler with the weights split over two processes, each on a core, if there are two cores."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, cores))
    return VllmSampler(replace(options, tensor_parallel=len(cores)))


def test_vllm_in_a_ray_actor_with_tensor_parallelism(ray_on_this_machine, options):
    remote = RemoteSamplers(partial(make_parallel, options), 1, lockstep=True)
    try:
        for lora in (None, LoraSettings(rank=2)):
            engine = trainer(options, lora)
            for version in (1, 2):
                move(engine, version)
                remote.sync(engine, version)
                assert gap(engine, remote, requests_of()) < 1e-4
                assert {completion.version for completion in run(remote, requests_of(4)).values()} == {version}
        remote.version = 3  # as if the actor had missed a sync
        remote._weights = None
        with pytest.raises(TrainingError, match="used version 2 of the weights; expected version 3"):
            run(remote, requests_of(4))
    finally:
        remote.close()
