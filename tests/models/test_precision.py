import pytest
import torch

from models.test_loading import saved, with_full_vocabulary
from seeupo.config.model_settings import TinyConfig
from seeupo.errors import ModelError
from seeupo.models.loading import load_policy
from seeupo.models.precision import cast_weights, resolve_device

TINY = TinyConfig(width=16, layers=1, heads=2, context=32)


def dtypes(tensors):
    return {tensor.dtype for tensor in tensors}


def test_bfloat16_keeps_float32_weights(tmp_path):
    policy = load_policy(saved(tmp_path, with_full_vocabulary("qwen3")), dtype="bfloat16")
    assert dtypes(policy.model.parameters()) == {torch.float32}
    assert policy.compute_dtype == torch.bfloat16
    assert policy.packing == "tree"
    with policy.autocast():
        assert policy.model(torch.tensor([[1, 2, 3]])).logits.dtype == torch.bfloat16


def test_frozen_weights_are_bfloat16_and_rotary_frequencies_are_not(tmp_path):
    policy = load_policy(saved(tmp_path, with_full_vocabulary("llama")), dtype="bfloat16", frozen=True)
    assert dtypes(policy.model.parameters()) == {torch.bfloat16}
    assert dtypes(policy.model.buffers()) == {torch.float32}
    assert policy.packing == "tree"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_types_have_no_autocast(dtype):
    policy = load_policy("tiny", tiny=TINY, dtype=dtype, frozen=True)
    assert dtypes(policy.model.parameters()) == {getattr(torch, dtype)}
    with policy.autocast():
        assert not torch.is_autocast_enabled("cpu")


def test_cast_weights_keeps_tied_weights_tied():
    model = load_policy("tiny", tiny=TINY).model
    cast_weights(model, torch.bfloat16)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert dtypes(model.parameters()) == {torch.bfloat16}


def test_auto_is_the_gpu_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    assert load_policy("tiny", tiny=TINY).model.device == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:99"])
def test_devices_that_do_not_work_are_refused(name):
    with pytest.raises(ModelError, match=f"device '{name}' cannot be used"):
        resolve_device(name)


def test_float16_is_refused():
    with pytest.raises(ModelError, match=r"'float16': expected one of float32, bfloat16, float64"):
        load_policy("tiny", dtype="float16")
