"""A configuration that asks for more than the files of a model contain ends before memory is allocated."""

import json
import shutil
import struct

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from seeupo.cli import main
from seeupo.errors import ModelError
from seeupo.models.loading import load_policy, load_tokenizer


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    policy = load_policy("tiny")
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refuse(*_, **__):
    raise AssertionError("transformers allocates memory here")


COUNTS = {
    "layers": {"num_hidden_layers": 10**7},
    "more layers": {"num_hidden_layers": 10**30},
    "nested": {"text_config": {"n_layer": 10**7}},
    "labels": {"num_labels": 10**9},
    "experts": {"num_local_experts": 10**7},
    "experts per layer": {"model_type": "mixtral", "num_hidden_layers": 900, "num_local_experts": 900},
}
SIZES = {
    "vocabulary": {"vocab_size": 10**12},
    "width": {"hidden_size": 10**6, "intermediate_size": 10**7},
    "overflow": {"hidden_size": 10**12, "intermediate_size": 10**12},
    "no integer": {"hidden_size": 10**40},
    "heads": {"num_attention_heads": 10**9, "head_dim": 10**9},
    "deep": {"num_hidden_layers": 200, "hidden_size": 4096},
}


@pytest.mark.parametrize("name", COUNTS)
def test_absurd_counts_are_refused_by_all_readers_of_a_configuration(name, folder, monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", refuse)
    change(folder, **COUNTS[name])
    for read in (load_policy, load_tokenizer):
        with pytest.raises(ModelError, match=r"config.json (has|asks for) .*; expected at most 1") as raised:
            read(str(folder))
        assert len(raised.value.lines) == 1
    result = CliRunner().invoke(main, ["plan", "--model.name", str(folder)], env={"COLUMNS": "500"})
    assert result.exit_code == 1
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("name", SIZES)
def test_absurd_sizes_are_refused_before_memory_is_allocated(name, folder, monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    change(folder, **SIZES[name])
    with pytest.raises(ModelError, match=r"could not be loaded|config.json describes a model of") as raised:
        load_policy(str(folder))
    assert "allocates memory" not in str(raised.value)


def test_gguf_files_are_never_parsed_as_models(folder, tmp_path):
    """Only the file of the catalog is, after its checksum was compared."""
    header = b"GGUF" + struct.pack("<IqQ", 3, -1, 2**63) + struct.pack("<Q", 2**62)  # tensors, keys, length of a key
    (folder / "model.safetensors").unlink()
    (folder / "model.gguf").write_bytes(header)
    change(folder, gguf_file="model.gguf")
    for name in (folder, folder / "model.gguf"):
        for read in (load_policy, load_tokenizer):
            with pytest.raises(ModelError, match=r"has no \.safetensors file|there is no folder"):
                read(str(name))


def test_loading_draws_no_random_numbers_for_the_check(folder):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    load_policy(str(folder))
    assert torch.equal(torch.rand(3), expected)
