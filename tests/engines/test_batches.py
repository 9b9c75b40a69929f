"""The trunk cache of an engine against the same engine without one."""

from dataclasses import replace

import pytest
import torch

from engines.examples import engine, objective_for, trajectories, weights
from models.examples import thought_stripped_trajectory
from seeupo.algorithms import GRPO, GSPO, PPO, SeeUPO
from seeupo.config.model_settings import LoraSettings
from seeupo.config.optimizer_settings import CriticOptimizerSettings, CriticSettings, OptimizerSettings
from seeupo.types import turns_of

TOP = {"trainable": (r"layers\.1\.", r"model\.norm", "lm_head")}
TOP_LORA = {"lora": LoraSettings(rank=2, layers=1)}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
VALUE_HEAD = CriticSettings(backbone="policy", optimizer=CriticOptimizerSettings(learning_rate=1e-2))
OWN_CRITIC = replace(VALUE_HEAD, backbone="own")
CASES = {
    "seeupo": (SeeUPO(epochs=2, entropy_coef=0.01), TOP),
    "seeupo-reference": (SeeUPO(kl_coef=0.01), {**TOP, "reference": True}),
    "seeupo-lora": (SeeUPO(kl_coef=0.01), {**TOP_LORA, "reference": True}),
    "seeupo-checkpointing": (SeeUPO(), {**TOP, "gradient_checkpointing": True}),
    "grpo": (GRPO(minibatches=2, epochs=2), {**TOP, "reference": True}),
    "gspo": (GSPO(), TOP),
    "ppo": (PPO(), {**TOP, "critic": OWN_CRITIC}),
    "ppo-head": (PPO(), {**TOP, "critic": VALUE_HEAD}),
}


def computed_tokens(local, index=0) -> list[int]:
    """Record the number of tokens in each pass through a layer."""
    seen = []
    layer = local.policy.model.base_model.layers[index]
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[0] * inputs[0].shape[1]))
    return seen


def distinct_tokens(turns) -> int:
    sequences = [turn.prompt_ids + turn.action_ids for turn in turns]
    return len({sequence[:length] for sequence in sequences for length in range(1, len(sequence) + 1)})


WHOLE, PART = 2**20, 70 * 32 * 8
"""Bytes of all hidden states, and of those of one batch: the turns of the others are computed in full."""


@pytest.mark.parametrize(
    ("case", "dtype", "trunk_bytes"),
    [
        *((case, torch.float64, WHOLE) for case in CASES),
        *((case, torch.float64, PART) for case in ("seeupo", "ppo-head")),
        ("seeupo-reference", torch.float32, WHOLE),
    ],
)
def test_algorithms_train_as_without_a_trunk_cache(case, dtype, trunk_bytes):
    algorithm, options = CASES[case]
    fast, slow = (engine(dtype=dtype, **options, trunk_bytes=size) for size in (trunk_bytes, 0))
    start = weights(fast)
    for iteration in range(2):
        batch, updates = trajectories(3, seed=iteration), []
        for local in (fast, slow):
            local.begin_iteration(iteration)
            generator = torch.Generator().manual_seed(iteration)
            updates.append(algorithm.update(local, batch, generator=generator))
        stored = [turn in fast._batches.trunk for turn in turns_of(batch)]
        assert any(stored)
        assert all(stored) == (trunk_bytes == WHOLE)
        assert fast._batches.trunk.used_bytes <= trunk_bytes
        for one, two in zip(*(update.metrics for update in updates), strict=True):
            assert dict(one.values) == pytest.approx(dict(two.values), rel=100 * TOLERANCE[dtype], abs=1e-4)
    moved, moved_slow = weights(fast) - start, weights(slow) - start
    assert float(moved_slow.norm()) > 0.01
    assert float((moved - moved_slow).norm() / moved_slow.norm()) < 100 * TOLERANCE[dtype]


def test_the_trunk_is_computed_once_per_iteration():
    local, batch = engine(**TOP, batch_tokens=10_000, row_tokens=10_000), trajectories(3)
    lower, upper = computed_tokens(local, 0), computed_tokens(local, 1)
    for iteration in range(2):
        lower.clear()
        local.begin_iteration(iteration)
        SeeUPO().update(local, batch)
        assert lower == [distinct_tokens(turns_of(batch))]
    assert len(upper) > 10


def test_turns_of_another_iteration_are_released():
    local = engine(**TOP)
    local.logprobs(turns_of(trajectories(3)))
    assert local._batches.trunk.used_bytes > 0
    local.begin_iteration(1)
    assert local._batches.trunk.used_bytes == 0


def test_only_missing_turns_are_added():
    local, turns = engine(**TOP, batch_tokens=10_000, row_tokens=10_000), thought_stripped_trajectory()
    lower = computed_tokens(local)
    first = local.logprobs(turns[:2])
    both = local.logprobs(turns)
    assert lower == [distinct_tokens(turns[:2]), distinct_tokens(turns[2:])]
    for one, two in zip(first, both, strict=False):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{}, {"trainable": ("embed_tokens", r"layers\.1\.")}, {"lora": LoraSettings(rank=2)}, {"packing": "padded"}],
)
def test_without_a_trunk_everything_is_computed_in_full(options):
    local = engine(**options)
    assert local._batches.trunk is None
    lower = computed_tokens(local)
    for _ in range(2):
        local.logprobs(turns_of(trajectories(3)))
    assert lower[: len(lower) // 2] == lower[len(lower) // 2 :] != []


def test_a_tied_output_head_that_is_trained_is_computed_in_full():
    def tied(**options):
        made = engine(**options)
        model = made.policy.model
        model.config.tie_word_embeddings = True
        model.tie_weights()
        made.set_optimizer(OptimizerSettings(learning_rate=1e-2, trainable=("embed_tokens", r"layers\.1\.")))
        return made

    fast, slow, batch = tied(), tied(trunk_bytes=0), trajectories(3)
    assert fast._batches.trunk is None
    for local in (fast, slow):
        SeeUPO().update(local, batch)
    assert torch.equal(weights(fast), weights(slow))
    fast.set_optimizer(OptimizerSettings(trainable=(r"layers\.1\.",)))
    assert fast._batches.trunk is not None


def test_states_are_dropped_when_weights_below_change(tmp_path):
    turns = turns_of(trajectories(3))
    local, other = engine(**TOP), engine(**TOP, seed=1)
    other.save(tmp_path)
    local.logprobs(turns)
    local.load(tmp_path)
    for one, two in zip(local.logprobs(turns), other.logprobs(turns), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_states_are_dropped_when_other_layers_are_trained():
    turns = turns_of(trajectories(3))
    local, slow = engine(**TOP), engine(**TOP, trunk_bytes=0)
    for side in (local, slow):
        side.logprobs(turns)
        side.set_optimizer(OptimizerSettings(learning_rate=1e-2))  # all layers, as in a warm start
        side.step(turns, objective_for(side, turns), normalizer=20)
        side.set_optimizer(OptimizerSettings(learning_rate=1e-2, **TOP))
    for one, two in zip(local.logprobs(turns), slow.logprobs(turns), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


def test_the_reference_policy_shares_the_trunk_if_its_weights_are_equal():
    turns = turns_of(trajectories(3))
    local = engine(**TOP, reference=True)
    computed, copied = computed_tokens(local), []
    local._reference.copy.model.base_model.layers[0].register_forward_pre_hook(lambda *_: copied.append(1))
    local.logprobs(turns)
    computed.clear()
    local.logprobs(turns, policy="reference")
    assert computed == copied == []
    # After a warm start of all layers the reference differs below, until it is taken again.
    local.set_optimizer(OptimizerSettings(learning_rate=1e-2))
    local.step(turns, objective_for(local, turns), normalizer=20)
    local.set_optimizer(OptimizerSettings(learning_rate=1e-2, **TOP))
    first = engine(**TOP).logprobs(turns)
    for one, two in zip(local.logprobs(turns, policy="reference"), first, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)
    assert copied
    local.snapshot_reference()
    copied.clear()
    now = local.logprobs(turns)
    for one, two in zip(local.logprobs(turns, policy="reference"), now, strict=True):
        assert torch.equal(one, two)
    assert copied == []


def test_a_reference_of_another_data_type_is_computed_in_full():
    local = engine(**TOP, dtype=torch.float32, reference=True, reference_dtype=torch.bfloat16)
    turns, copied = turns_of(trajectories(3)), []
    local._reference.copy.model.base_model.layers[0].register_forward_pre_hook(lambda *_: copied.append(1))
    local.logprobs(turns, policy="reference")
    assert copied


def test_the_same_passes_are_bit_identical():
    """With one batch for all turns, trunk and layers above run the same kernels as the whole model."""
    turns = turns_of(trajectories(3))
    options = {**TOP, "dtype": torch.float32, "batch_tokens": 10_000, "row_tokens": 10_000}
    fast, slow = engine(**options), engine(**options, trunk_bytes=0)
    for local in (fast, slow):
        local.step(turns, objective_for(local, turns), normalizer=20)
    assert torch.equal(weights(fast), weights(slow))


def test_a_kept_trunk_is_computed_once_for_all_iterations():
    local, kept, other = engine(**TOP, batch_tokens=10_000, row_tokens=10_000), trajectories(3), trajectories(3, seed=1)
    lower = computed_tokens(local)
    assert "trunk" in local.capabilities
    local.keep_trunk(turns_of(kept[:1]))
    local.keep_trunk(turns_of(kept))
    assert len(lower) == 2
    for iteration in range(2):
        local.begin_iteration(iteration)
        assert not any(turn in local._batches.trunk for turn in turns_of(other))
        lower.clear()
        local.logprobs([*turns_of(kept), *turns_of(other)])
        assert lower == [distinct_tokens(turns_of(other))]
    local.set_optimizer(local.settings)
    assert local._batches.trunk.used_bytes == 0
