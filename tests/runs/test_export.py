"""Merged adapters, and the policy's folder."""

import torch
from transformers import AutoModelForCausalLM

from engines.examples import engine
from models.examples import random_turns
from seeupo.config.model_settings import LoraSettings
from seeupo.models.logprobs import padded_logprobs
from seeupo.models.lora.adapters import merged_weights, plain_model
from seeupo.runs.export import export_policy
from seeupo.training.warm_start import LogLikelihood

TURNS = random_turns(0, count=8)


def logprobs(model):
    with torch.no_grad():
        return padded_logprobs(model, TURNS).logprobs


def test_merging_adapters_keeps_logprobs_and_the_adapted_model(tmp_path):
    local = engine(lora=LoraSettings(rank=2), learning_rate=1e-2)
    plain = logprobs(local.policy.model)
    for _ in range(3):
        local.step(TURNS, LogLikelihood(), normalizer=10)
    adapted = logprobs(local.policy.model)
    assert not torch.allclose(adapted, plain)
    model = local.policy.model
    merged = plain_model(model, dict(merged_weights(model))).to(torch.float64)
    torch.testing.assert_close(logprobs(merged), adapted, rtol=0, atol=1e-6)
    assert torch.equal(logprobs(local.policy.model), adapted)
    export_policy(local.export, tmp_path / "policy", lambda folder: "a card")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float64)
    assert {name for name, _ in loaded.named_parameters()} == {name for name, _ in merged.named_parameters()}
    torch.testing.assert_close(logprobs(loaded), adapted, rtol=0, atol=1e-5)


def test_an_older_policy_is_replaced(tmp_path):
    local = engine()
    export_policy(local.export, tmp_path / "policy", lambda folder: "first")
    export_policy(local.export, tmp_path / "policy", lambda folder: "second")
    assert (tmp_path / "policy" / "README.md").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
