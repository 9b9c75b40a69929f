"""Adapter folders: loaded onto their base model as data, with the log-probs of peft, and safely."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engines.examples import TOKENIZER
from models.examples import random_turns
from models.test_loading import saved, with_full_vocabulary
from seeupo.config.model_settings import LoraSettings
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.errors import ModelError
from seeupo.models import loading
from seeupo.models.loading import load_policy
from seeupo.models.location import ADAPTER_CONFIG
from seeupo.models.logprobs import padded_logprobs
from seeupo.models.lora.adapter_folders import WEIGHTS, base_name
from seeupo.training.warm_start import LogLikelihood

TURNS = random_turns(0, count=8)
LORA = LoraSettings(rank=2, targets=("q_proj", "down_proj"))


def logprobs(model):
    with torch.no_grad():
        return padded_logprobs(model, TURNS).logprobs


def trained(name, lora=LORA, steps=3, **options):
    policy, settings = load_policy(name, merge=lora is None), OptimizerSettings(learning_rate=1e-2)
    engine = LocalEngine(policy, settings, lora=lora, batch_tokens=64, **options)
    for _ in range(steps):
        engine.step(TURNS, LogLikelihood(), normalizer=10)
    return engine


@pytest.fixture
def base(tmp_path):
    return saved(tmp_path / "base model", with_full_vocabulary("qwen2"))


@pytest.fixture
def adapter(tmp_path, base):
    """An adapter folder for a base model in another folder."""
    trained(base).save(tmp_path / "adapter")
    return tmp_path / "adapter"


def change(folder, **settings):
    config = json.loads((folder / ADAPTER_CONFIG).read_text())
    (folder / ADAPTER_CONFIG).write_text(json.dumps({**config, **settings}))
    return str(folder)


@pytest.mark.parametrize("rank_stabilized", [False, True])
def test_an_adapter_has_the_same_logprobs_here_and_in_peft(base, adapter, rank_stabilized):
    change(adapter, use_rslora=rank_stabilized)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    ours = load_policy(str(adapter))
    assert not any("lora" in name for name, _ in ours.model.named_parameters())
    torch.testing.assert_close(logprobs(ours.model), logprobs(theirs.base_model.model), rtol=0, atol=1e-5)
    assert (logprobs(ours.model) - logprobs(load_policy(base).model)).abs().max() > 1e-2
    assert len(ours.tokenizer) == len(TOKENIZER)


def test_an_adapter_of_a_base_without_a_name_contains_the_base(tmp_path):
    engine = trained("tiny")
    engine.save(tmp_path / "adapter")
    actual = load_policy(str(tmp_path / "adapter")).model
    torch.testing.assert_close(logprobs(actual), logprobs(engine.policy.model), rtol=0, atol=1e-5)


def test_training_continues_the_adapter_or_merges_it(base, adapter, tmp_path):
    before = logprobs(load_policy(str(adapter)).model)
    same = trained(str(adapter), steps=0)
    torch.testing.assert_close(logprobs(same.policy.model), before, rtol=0, atol=1e-5)
    same.step(TURNS, LogLikelihood(), normalizer=10)
    same.save(tmp_path / "next")
    assert json.loads((tmp_path / "next" / ADAPTER_CONFIG).read_text())["base_model_name_or_path"] == base
    torch.testing.assert_close(
        logprobs(load_policy(str(tmp_path / "next")).model), logprobs(same.policy.model), rtol=0, atol=1e-5
    )
    merged = trained(str(adapter), lora=None, steps=0)
    torch.testing.assert_close(logprobs(merged.policy.model), before, rtol=0, atol=1e-5)


def test_the_reference_policy_has_the_adapter_that_training_started_from(adapter):
    engine = trained(str(adapter), steps=0, reference=True)
    before = torch.cat(engine.logprobs(TURNS))
    engine.step(TURNS, LogLikelihood(), normalizer=10)
    assert torch.equal(torch.cat(engine.logprobs(TURNS, policy="reference")), before)
    assert not torch.equal(torch.cat(engine.logprobs(TURNS)), before)


@pytest.mark.parametrize("changed", [{"rank": 4}, {"alpha": 16}, {"targets": ("q_proj",)}, {"layers": 1}])
def test_an_adapter_of_another_shape_is_not_continued(adapter, changed):
    with pytest.raises(ValueError, match=r"the adapter .* has rank 2, alpha 32 and targets down_proj, q_proj"):
        trained(str(adapter), LoraSettings(**{"rank": 2, "targets": LORA.targets, **changed}))


@pytest.mark.parametrize(
    "name",
    ["../base model", "../../base model", "a/../../base model", "~/model", "file:///model", "", None, 3, ["x"],
     "no-such-model", "\x1b]0;x", "a\0b", "x" * 5000, "/", "tiny"],
)  # fmt: skip
def test_base_names_that_are_not_models_are_refused_in_one_line(base, adapter, name, tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    change(adapter, base_model_name_or_path=name)
    with pytest.raises(ModelError, match="adapter") as error:
        load_policy(str(adapter))
    assert "base_model_name_or_path" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_base_cannot_be_a_link_that_leaves_the_folder(base, adapter):
    (adapter / "inside").symlink_to(base)
    with pytest.raises(ModelError, match="a link that leaves the folder"):
        load_policy(change(adapter, base_model_name_or_path="inside"))


def test_an_adapter_of_an_adapter_is_refused(adapter, tmp_path):
    trained("tiny", steps=0).save(tmp_path / "other")
    with pytest.raises(ModelError, match="an adapter itself"):
        load_policy(change(adapter, base_model_name_or_path=str(tmp_path / "other")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "type 'IA3'; expected LORA"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "sets alpha_pattern"),
        ({"init_lora_weights": "pissa"}, "sets init_lora_weights"),
        ({"use_dora": True}, "sets use_dora"),
        ({"r": "2"}, "r = '2'"),
        ({"lora_alpha": float("nan")}, "lora_alpha = nan"),
    ],
)
def test_adapters_that_compute_something_else_are_refused(adapter, settings, message):
    with pytest.raises(ModelError, match=message):
        load_policy(change(adapter, **settings))


def test_invalid_weights_are_refused(adapter):
    weights = load_file(adapter / WEIGHTS)
    name = next(name for name in weights if "lora_A" in name)
    for changed, message in [
        ({"base_model.model.lm_head.weight": torch.zeros(2, 2)}, "expected LoRA matrices only"),
        ({name: torch.zeros(3, 32)}, "do not belong together"),
        ({name: torch.zeros(2, 5)}, "does not fit the base"),
    ]:
        save_file({**weights, **changed}, adapter / WEIGHTS)
        with pytest.raises(ModelError, match=message):
            load_policy(str(adapter))
    (adapter / WEIGHTS).write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="cannot be read"):
        load_policy(str(adapter))
    (adapter / WEIGHTS).unlink()
    torch.save(weights, adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"has no adapter_model\.safetensors"):
        load_policy(str(adapter))


def test_adapters_never_reach_peft(adapter, monkeypatch):
    """peft imports a module that `megatron_core` names; transformers calls it for any folder with an adapter."""
    monkeypatch.setattr("peft.LoraConfig.__init__", lambda *_, **__: pytest.fail("peft has read the adapter"))
    load_policy(change(adapter, megatron_core="this_module", megatron_config={"x": 1}))
    saved(adapter, with_full_vocabulary("qwen2"))  # a model and an adapter in one folder
    load_policy(str(adapter))


def test_adapters_on_a_hub_are_downloaded_and_read_as_folders(adapter, monkeypatch):
    monkeypatch.setattr(loading, "locate", str)
    monkeypatch.setattr(loading, "find_adapter_config_file", lambda name: "found" if name == "me/adapter" else None)
    monkeypatch.setattr(loading, "snapshot_download", lambda name, **_: str(adapter))
    actual = load_policy("me/adapter").model
    assert torch.equal(logprobs(actual), logprobs(load_policy(str(adapter)).model))


def test_base_names_are_stored_as_typed_unless_they_climb(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert base_name("owner/model") == "owner/model"
    assert base_name("models/mine") == "models/mine"
    assert base_name("../models") == str(tmp_path / "models")
