from dataclasses import replace

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex_attention

from models.examples import FAMILIES, random_turns, small_model, thought_stripped_trajectory
from seeupo.models.packing import tree, tree_attention, tree_layers
from seeupo.models.packing.tree import LayerInput, pack_batches
from seeupo.models.packing.tree_layers import _all_states, final_states, states_below, use_tree_attention
from seeupo.types import Turn

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(params=[1, 96])
def batches(request, monkeypatch):
    """Batches of several rows with branches, chains, stripped thoughts, padding and actions without tokens."""
    monkeypatch.setattr(tree, "SMALL_TREE", request.param)
    turns = random_turns(2, count=40) + thought_stripped_trajectory()
    return pack_batches(turns, row_tokens=24, batch_tokens=96)


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same(model, actual, expected, dtype):
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE[dtype])
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    one, two = (gradients(model, (weights * states).sum()) for states in (actual, expected))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=TOLERANCE[dtype] * (1 + two[name].abs().max()))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_needed_tokens_have_the_states_of_the_whole_model(family, dtype, batches):
    """The slow twin computes all tokens in all layers with the model's own forward pass."""
    model = small_model(family, dtype)
    use_tree_attention(model)
    for batch in batches:
        positions = torch.cat([batch.predictors[batch.mask], batch.lasts])
        assert_same(model, final_states(model, batch, positions), _all_states(model, batch)[positions], dtype)


def test_other_families_are_computed_by_their_own_forward_pass(batches, monkeypatch):
    model = small_model()
    expected = [final_states(model, batch, batch.lasts) for batch in batches]
    monkeypatch.setattr(tree_layers, "FAMILIES", ())
    for batch, states in zip(batches, expected, strict=True):
        torch.testing.assert_close(final_states(model, batch, batch.lasts), states, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_batch_continues_at_the_layer_that_it_starts_from(layer, batches):
    model = small_model("qwen3")
    for batch in batches:
        expected = final_states(model, batch, batch.lasts)
        start = LayerInput(layer, states_below(model, batch, layer))
        assert torch.equal(final_states(model, replace(batch, start=start), batch.lasts), expected)


def test_the_last_layer_computes_the_feed_forward_part_of_needed_tokens_only():
    model = small_model()
    turns = [Turn(str(n), 0, tuple(range(30)), (n, n + 1)) for n in range(4)]
    (batch,) = pack_batches(turns, row_tokens=100, batch_tokens=100)
    sizes = []
    for layer in model.base_model.layers:
        layer.mlp.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[1]))
    final_states(model, batch, batch.predictors[batch.mask])
    assert sizes == [30 + 4 * 2, 1 + 4]


def test_flex_attention_has_the_same_queries(batches, monkeypatch):
    model = small_model()
    expected = [final_states(model, batch, batch.lasts).detach() for batch in batches]
    monkeypatch.setattr(torch_flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(tree_attention, "flex_is_faster", lambda queries: True)
    for batch, states in zip(batches, expected, strict=True):
        with torch.no_grad():
            actual = final_states(model, batch, batch.lasts)
        torch.testing.assert_close(actual, states, rtol=0, atol=1e-10)
