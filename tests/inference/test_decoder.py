"""The decoder's snapshot of the weights against the model's own modules and against transformers."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

from models.examples import FAMILIES, SHAPE, VOCABULARY, small_model
from seeupo.config.model_settings import LoraSettings
from seeupo.inference.decoder import Decoder
from seeupo.inference.decoding_weights import Matrix, Product
from seeupo.models.lora.adapters import add_adapters
from seeupo.models.precision import use_exact_norms

TOKENS = torch.randint(0, VOCABULARY, (30,), generator=torch.Generator().manual_seed(0))
EXACT = pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])


def causal(layer, queries, keys, values):
    attended = scaled_dot_product_attention(
        *(tensor.transpose(0, 1)[None] for tensor in (queries, keys, values)), is_causal=True, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def log_probs(decoder: Decoder, temperature: float = 0.7) -> torch.Tensor:
    hidden = decoder.hidden(TOKENS, torch.arange(len(TOKENS)), causal)
    return decoder.probabilities(hidden, torch.full((len(TOKENS),), temperature, dtype=hidden.dtype)).log()


def randomize(model: torch.nn.Module) -> None:
    """Change all weights, because norms, biases and adapters start at constants."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def biased_llama(dtype: torch.dtype):
    made = LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True))
    made = made.to(dtype).eval()
    if dtype == torch.float64:
        use_exact_norms(made)
    return made


@EXACT
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("family", [*FAMILIES, "biased"])
def test_snapshot_equals_the_models_modules_and_transformers(family, lora, dtype, bound):
    model = biased_llama(dtype) if family == "biased" else small_model(family, dtype)
    if lora:
        add_adapters(model, LoraSettings(rank=2, alpha=2))
    randomize(model)
    actual = log_probs(Decoder(model))
    with torch.no_grad():
        logits = model(input_ids=TOKENS[None]).logits[0]
    torch.testing.assert_close(actual, log_probs(Decoder(model, snapshot_bytes=0)), rtol=0, atol=bound)
    # transformers rounds the sines and cosines of positions to float32, as the decoder does.
    torch.testing.assert_close(actual, (logits / 0.7).log_softmax(-1), rtol=0, atol=bound)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_layers_are_computed_from_the_snapshot(monkeypatch, lora):
    model = small_model()
    if lora:
        add_adapters(model, LoraSettings(rank=2, alpha=2))
    decoder = Decoder(model)
    before = log_probs(decoder)
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda *_: pytest.fail("a module of the model was called"))
    assert torch.equal(log_probs(decoder), before)
    decoder.drop_snapshot()
    assert torch.equal(log_probs(decoder), before)


def test_changed_weights_are_used_after_the_snapshot_was_dropped():
    model = small_model()
    decoder = Decoder(model)
    before = log_probs(decoder)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    assert torch.equal(log_probs(decoder), before)
    decoder.drop_snapshot()
    changed = log_probs(decoder)
    assert float((changed - before).abs().max()) > 1e-3
    torch.testing.assert_close(changed, log_probs(Decoder(model, snapshot_bytes=0)), rtol=0, atol=1e-10)


def test_no_snapshot_is_made_of_large_models_and_in_bfloat16():
    model = small_model(dtype=torch.float32)
    size = sum(weight.nbytes for weight in model.parameters())
    for made, limit in ((True, size), (False, size - 1)):
        decoder = Decoder(model, snapshot_bytes=limit)
        log_probs(decoder)
        assert (decoder._weights is not None) is made
    mixed = Decoder(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs(mixed)
    frozen = Decoder(small_model(dtype=torch.bfloat16))
    log_probs(frozen)
    assert mixed._weights is None
    assert frozen._weights is None


@pytest.mark.parametrize("rows", [1, 2, 64, 300])
def test_packed_products_equal_plain_ones(rows):
    generator = torch.Generator().manual_seed(rows)
    states, weight, bias = (torch.randn(shape, generator=generator) for shape in ((rows, 48), (72, 48), (72,)))
    plain = states @ weight.T
    products = (Product(Matrix(weight, None)), plain), (Product(Matrix(weight, bias)), plain + bias)
    for product, expected in products:
        assert product.packed is torch.backends.mkldnn.is_available()
        torch.testing.assert_close(product(states), expected, rtol=0, atol=1e-5)
