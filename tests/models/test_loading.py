import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from models.examples import FAMILIES, random_turns, small_model
from seeupo.config.model_settings import TinyConfig
from seeupo.errors import ModelError
from seeupo.models.loading import load_policy
from seeupo.models.logprobs import padded_logprobs, tree_logprobs
from seeupo.models.packing.tree import pack_batches
from seeupo.models.packing.tree_attention import BlockedAttention
from seeupo.models.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer(TinyConfig())


def saved(folder, model, tokenizer=TOKENIZER):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def with_full_vocabulary(family: str):
    """A small model with embeddings for the whole vocabulary of the tokenizer."""
    torch.manual_seed(0)
    config, model = FAMILIES[family]
    shape = {**small_model(family).config.to_dict(), "vocab_size": 300}
    return model(config(**{name: value for name, value in shape.items() if name != "dtype"}))


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_folders_load_and_are_tree_packed(family, tmp_path):
    model = with_full_vocabulary(family).eval()
    policy = load_policy(saved(tmp_path, model))
    assert policy.packing == "tree"
    assert policy.context_length == 128
    turns = random_turns(0)
    expected, actual = padded_logprobs(model, turns), padded_logprobs(policy.model, turns)
    torch.testing.assert_close(actual.logprobs, expected.logprobs)


def test_tiny_does_not_depend_on_the_global_generator():
    policies = []
    for draws in (0, 5):
        torch.manual_seed(draws)
        policies.append(load_policy("tiny", tiny=TinyConfig(seed=3, corpus=["the cat sat on the mat"] * 5)))
    for one, other in zip(*(policy.model.parameters() for policy in policies), strict=True):
        assert torch.equal(one, other)
    ids = policies[0].tokenizer.encode("the cat 猫 <|im_end|>")
    assert policies[0].tokenizer.decode(ids) == "the cat 猫 <|im_end|>"
    assert len(policies[0].tokenizer.encode("the cat")) < len(TOKENIZER.encode("the cat"))
    assert ids[-1] == policies[0].tokenizer.eos_token_id
    other_seed = load_policy("tiny", tiny=TinyConfig(seed=4, corpus=["the cat sat on the mat"] * 5))
    assert not torch.equal(next(other_seed.model.parameters()), next(policies[0].model.parameters()))


def test_default_tiny_has_the_documented_size():
    policy = load_policy("tiny")
    count = sum(parameter.numel() for parameter in policy.model.parameters())
    assert 0.5e6 < count < 0.75e6
    assert policy.packing == "tree"


def test_float64_model_computes_in_float64(tmp_path):
    policy = load_policy(saved(tmp_path, with_full_vocabulary("llama")), dtype="float64")
    actual = padded_logprobs(policy.model, random_turns(0))
    assert actual.logprobs.dtype == torch.float64


def test_other_architectures_are_packed_if_log_probs_agree(tmp_path):
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2, n_positions=64))
    policy = load_policy(saved(tmp_path, gpt2))
    assert policy.packing == "tree"
    with torch.no_grad():
        for seed in range(3):
            turns = random_turns(seed)
            for batch in pack_batches(turns, row_tokens=32, batch_tokens=64):
                plain = padded_logprobs(policy.model, [turns[member] for member in batch.members])
                torch.testing.assert_close(
                    tree_logprobs(policy.model, batch).logprobs, plain.logprobs, rtol=0, atol=1e-5
                )


def test_models_that_cannot_be_packed_warn_and_use_padding(tmp_path):
    with pytest.warns(UserWarning, match="cannot be tree-packed"):
        policy = load_policy(saved(tmp_path, sliding_mistral()))
    assert policy.packing == "padded"
    assert padded_logprobs(policy.model, random_turns(0)).logprobs.isfinite().all()


def test_model_that_attends_across_branches_is_not_packed(tmp_path, monkeypatch):
    def along_the_row(self, queries, keys, values, scaling):
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scaling, enable_gqa=True
        )
        return attended.transpose(1, 2)

    monkeypatch.setattr(BlockedAttention, "__call__", along_the_row)
    with pytest.warns(UserWarning, match="its log-probs differ by"):
        policy = load_policy(saved(tmp_path, with_full_vocabulary("llama")))
    assert policy.packing == "padded"


def sliding_mistral():
    return MistralForCausalLM(
        MistralConfig(
            vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, sliding_window=4, max_position_embeddings=64,
        )
    )  # fmt: skip


def test_invalid_models_are_refused_with_a_hint(tmp_path, monkeypatch):
    monkeypatch.setenv("SEEUPO_CACHE", str(tmp_path / "cache"))
    empty, no_weights = tmp_path / "empty", tmp_path / "no_weights"
    empty.mkdir()
    folder = saved(no_weights, with_full_vocabulary("llama"))
    weights = next(no_weights.glob("*.safetensors"))
    torch.save(load_file(weights), no_weights / "pytorch_model.bin")
    weights.unlink()
    too_many_words = tiny_tokenizer(TinyConfig(corpus=[f"word{n} thing{n * 7}" for n in range(400)] * 3))
    assert len(too_many_words) > 300
    mismatched = saved(tmp_path / "mismatched", with_full_vocabulary("llama"), too_many_words)
    for name, message in [
        ("smolm2-135m", r"unknown model 'smolm2-135m'; did you mean 'smollm2-135m'\?"),
        ("no-such-thing", "tiny, smollm2-135m .*model folder, or owner/name"),
        ("./missing/folder", r"there is no folder './missing/folder'"),
        ("smollm2-135m", "seeupo models fetch smollm2-135m"),
        (str(empty), "has no config.json"),
        (folder, r"has no \.safetensors file"),
        (mismatched, r"token ids up to \d+ but the model has only 300"),
    ]:
        with pytest.raises(ModelError, match=message):
            load_policy(name)
    with pytest.raises(ModelError, match="dtype = 'int8': expected one of float32"):
        load_policy("tiny", dtype="int8")
    with pytest.raises(ModelError, match="device 'cuda:9' cannot be used"):
        load_policy("tiny", device="cuda:9")
    with pytest.raises(ValueError, match=r"width = 30: expected a multiple of .* 8"):
        TinyConfig(width=30)


def test_remote_code_is_not_run(tmp_path):
    folder = tmp_path / "custom"
    saved(folder, with_full_vocabulary("llama"))
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "my_own"
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(ModelError, match="could not be loaded"):
        load_policy(str(folder))
    assert not (tmp_path / "ran").exists()
