from dataclasses import replace

import pytest
import torch

from models.examples import random_turns, small_model, thought_stripped_trajectory
from seeupo.models.packing.tree import pack_batches
from seeupo.models.packing.tree_layers import states_below
from seeupo.models.packing.trunk import TrunkCache, trunk_layers, without_states
from seeupo.types import Turn

TURNS = random_turns(3, count=20) + thought_stripped_trajectory()


def named(model, *parts):
    return [parameter for name, parameter in model.named_parameters() if any(part in name for part in parts)]


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        (("layers.1.",), 1),
        (("layers.1.mlp.up_proj", "model.norm", "lm_head"), 1),
        (("model.norm",), 1),  # the last layer is always computed
        (("layers.0.", "layers.1."), 0),
        (("layers.1.", "embed_tokens"), 0),
        (("",), 0),
    ],
)
def test_the_trunk_is_below_the_first_trained_layer(trained, expected):
    model = small_model()
    assert trunk_layers(model, named(model, *trained)) == expected


def test_a_trained_output_head_that_is_tied_to_the_embeddings_leaves_no_trunk():
    model = small_model()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    assert model.lm_head.weight is model.base_model.embed_tokens.weight
    assert trunk_layers(model, named(model, "layers.1.")) == 1
    assert trunk_layers(model, [*named(model, "layers.1."), model.lm_head.weight]) == 0


def test_models_of_other_families_have_no_trunk():
    model = small_model()
    model.config.model_type = "other"
    assert trunk_layers(model, named(model, "layers.1.")) == 0


def filled(model, turns, *, max_bytes=2**20):
    cache = TrunkCache(1, max_bytes)
    for batch in pack_batches(turns, row_tokens=40, batch_tokens=80):
        cache.add(batch, turns, states_below(model, batch, 1))
    return cache


def test_stored_states_are_those_of_the_tokens_in_any_other_packing():
    model = small_model()
    cache = filled(model, TURNS)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        turns = [TURNS[index] for index in torch.randperm(len(TURNS), generator=generator)[:9].tolist()]
        for batch in pack_batches(turns, row_tokens=24, batch_tokens=60):
            start = cache.attach(batch, turns).start
            expected = states_below(model, batch, 1)
            for row, blocks in enumerate(batch.blocks):
                end = blocks[-1].end
                torch.testing.assert_close(start.states[row, :end], expected[row, :end], rtol=0, atol=1e-12)
                assert not start.states[row, end:].any()
            assert start.layer == 1
            assert not start.states.requires_grad


def test_turns_are_found_by_their_tokens():
    cache = filled(small_model(), TURNS)
    assert all(replace(turn, trajectory="other", index=9) in cache for turn in TURNS)
    assert Turn("0", 0, TURNS[0].prompt_ids, (*TURNS[0].action_ids, 1)) not in cache
    cache.release()
    assert TURNS[0] not in cache
    assert cache.used_bytes == 0


def test_batches_beyond_the_limit_are_left_out():
    batches = pack_batches(TURNS, row_tokens=24, batch_tokens=40)
    sizes = [batch.input_ids.numel() * 256 for batch in batches]
    assert len(TrunkCache(1, sum(sizes)).fitting(batches, 256)) == len(batches)
    assert len(TrunkCache(1, sum(sizes) - 1).fitting(batches, 256)) == len(batches) - 1
    assert TrunkCache(1, sizes[0] - 1).fitting(batches, 256) == []
    cache = TrunkCache(1, sum(sizes[:2]))
    cache.add(batches[0], TURNS, torch.zeros(*batches[0].input_ids.shape, 32, dtype=torch.float64))
    assert cache.used_bytes == sizes[0]
    assert len(cache.fitting(batches[1:], 256)) == 1


def test_fillers_start_above_the_trunk():
    (batch,) = pack_batches([Turn("filler", 0, (0,), (0,))], row_tokens=8, batch_tokens=8)
    start = without_states(batch, small_model(), 1).start
    assert (start.layer, tuple(start.states.shape), start.states.dtype) == (1, (1, 2, 32), torch.float64)
