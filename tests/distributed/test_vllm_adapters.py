"""vLLM with one adapter per turn, compared with the trainer's log-probs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from distributed.test_vllm_sampler import CONTEXT, TEMPERATURE, move, trainer
from engines.examples import request, run
from seeupo.config.model_settings import VLLM_RANKS, LoraSettings, TinyConfig
from seeupo.distributed.vllm_sampler import VllmOptions, VllmSampler
from seeupo.engines.local import LocalEngine
from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model
from seeupo.types import Turn

pytest.importorskip("vllm", reason="vLLM is not installed; `make vllm-test` runs these tests")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

LORA = LoraSettings(rank=3, per_turn=3, turns_per_agent=2, layers=1, targets=("q_proj", "v_proj", "down_proj"))
"""Adapters of turns 1 and 2, 3 and 4, and of all later ones; some projections that vLLM fuses have none."""


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> VllmOptions:
    folder = tmp_path_factory.mktemp("model")
    policy = load_policy("tiny", tiny=TinyConfig(width=192, heads=6, layers=2))
    save_model(policy.model, policy.tokenizer, folder)
    end = policy.tokenizer.eos_token_id
    return VllmOptions(model=str(folder), context_length=CONTEXT, end_tokens=(end,), max_rows=16, lora=LORA)


@pytest.fixture(scope="module")
def sampler(options) -> VllmSampler:
    return VllmSampler(options)


def requests_of(count: int = 14, prompt=(5, 6, 7, 8)):
    """Requests of the turns 0 to 6 with the same prompt."""
    options = {"temperature": TEMPERATURE, "max_tokens": 16}
    return [replace(request(str(n), prompt, seed=n, **options), agent=n % 7) for n in range(count)]


def gaps(engine: LocalEngine, sampler, requests) -> list[float]:
    """Return the largest difference between the sampler's log-probs and the trainer's, of each request."""
    completions = run(sampler, requests)
    turns = [Turn(request.id, request.agent, request.prompt_ids, completions[request.id].ids) for request in requests]
    return [
        float((row - torch.tensor(completions[turn.trajectory].logprobs)).abs().max())
        for turn, row in zip(turns, engine.logprobs(turns), strict=True)
    ]


def test_each_turn_is_sampled_with_its_adapter_after_every_update(sampler, options):
    engine = trainer(options, LORA)
    assert max(gaps(engine, sampler, requests_of())) < 1e-4  # new adapters add nothing
    for version in range(1, 4):
        move(engine, version, 0.2)
        assert min(gaps(engine, sampler, requests_of())) > 1e-3  # each update is large enough to be noticed
        sampler.sync(engine, version)
        assert max(gaps(engine, sampler, requests_of())) < 1e-4
        assert {completion.version for completion in run(sampler, requests_of()).values()} == {version}


def test_turns_differ_and_are_the_same_alone_and_in_a_batch(sampler, options):
    engine = trainer(options, LORA)
    move(engine, 1, 0.2)
    sampler.sync(engine, 1)
    requests = [replace(request, seed=3) for request in requests_of(7)]
    together = run(sampler, requests)
    assert [run(sampler, [request])[request.id].ids for request in requests] == [
        together[request.id].ids for request in requests
    ]
    ids = [together[str(turn)].ids for turn in range(7)]
    assert ids[0] == ids[1] != ids[2] == ids[3] != ids[4] == ids[5] == ids[6]


def test_adapters_do_not_share_keys_and_values(sampler, options, monkeypatch):
    cached: dict[str, int] = {}
    original = sampler._completion

    def record(output):
        cached[output.request_id] = output.num_cached_tokens
        return original(output)

    monkeypatch.setattr(sampler, "_completion", record)
    engine = trainer(options, LORA)
    prompt = torch.randint(5, 90, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    for version in (1, 2):
        move(engine, version, 0.2)
        sampler.sync(engine, version)
        for turn in range(6):
            turn_request = requests_of(7, prompt)[turn]
            assert max(gaps(engine, sampler, [turn_request])) < 1e-4
        # The first turn of each agent computes the prompt, the second finds it.
        assert [cached[str(turn)] for turn in (0, 2, 4)] == [0, 0, 0]
        assert min(cached[str(turn)] for turn in (1, 3, 5)) >= 128


def test_requests_without_a_turn_are_refused(sampler):
    with pytest.raises(ValueError, match="names no turn"):
        sampler.submit(request("a", (1, 2), temperature=TEMPERATURE))


def test_release_keeps_the_model_below_the_adapters(options):
    sampler, engine, levels = VllmSampler(replace(options, shared=True)), trainer(options, LORA), []
    core = sampler._engine.engine_core
    sleep = core.sleep
    core.sleep = lambda level, *arguments: (levels.append(level), sleep(level, *arguments))
    sampler.sync(engine, 1)
    sampler.release()
    assert levels == [1]
    with pytest.raises(RuntimeError, match="expected a sync before the next request"):
        sampler.submit(requests_of(1)[0])
    move(engine, 1, 0.2)
    sampler.sync(engine, 2)
    assert max(gaps(engine, sampler, requests_of())) < 1e-4


def test_exported_folders_are_served_with_the_log_probs_of_the_engine(sampler, options, tmp_path):
    from vllm.lora.request import LoRARequest

    engine = trainer(options, LORA)
    move(engine, 5, 0.2)
    engine.export(tmp_path)
    numbers = range(1001, 1004)
    requests = [
        LoRARequest(name, number, str(Path(tmp_path) / name))
        for number, name in zip(numbers, ("turn_1", "turn_2", "turn_3"), strict=True)
    ]
    sampler._adapters._requests = requests
    try:
        assert max(gaps(engine, sampler, requests_of())) < 1e-4
    finally:
        sampler.sync(engine, 1)


def test_ranks_are_those_that_vllm_accepts():
    from vllm.config.lora import MaxLoRARanks

    assert get_args(MaxLoRARanks) == VLLM_RANKS
