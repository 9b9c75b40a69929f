import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from engines.examples import engine, objective_for, trajectories, weights
from models.examples import random_samples
from seeupo.algorithms import SeeUPO
from seeupo.algorithms.batch import by_key
from seeupo.algorithms.objective import SequenceObjective
from seeupo.engines.local import LoraSettings
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.engines.samplers.local import LocalSampler
from seeupo.models.logprobs import padded_logprobs
from seeupo.training.warm_start import LogLikelihood
from seeupo.types import GenerationRequest, SamplingParameters, Turn

SAMPLES = random_samples(0, count=20)


@pytest.mark.parametrize("packing", ["tree", "padded"])
def test_log_probs_come_in_the_order_of_the_samples(packing):
    local = engine(packing=packing, temperature=0.7)
    for turn, row in zip(SAMPLES, local.logprobs(SAMPLES), strict=True):
        alone = padded_logprobs(local.policy.model, [turn], temperature=0.7).logprobs[0]
        assert row.shape == (len(turn.action_ids),)
        torch.testing.assert_close(row, alone.detach())
        assert not row.requires_grad


@pytest.mark.parametrize("packing", ["tree", "padded"])
@pytest.mark.parametrize("batch_tokens", [16, 10_000])
def test_a_step_does_not_depend_on_micro_batches_or_packing(packing, batch_tokens):
    """One AdamW step on the whole batch, written out, is what every way of splitting it must give."""
    local = engine(packing=packing, batch_tokens=batch_tokens, weight_decay=0.1, max_grad_norm=0.5)
    model = local.policy.model
    objective = objective_for(local, SAMPLES, entropy_coef=0.1)

    found = padded_logprobs(model, SAMPLES, entropies=True)
    loss = -objective(found.logprobs, found.entropies, SAMPLES).sum() / 20
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    expected = []
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        clipped = gradient * min(1.0, 0.5 / float(norm))
        decayed = parameter.detach() * (1 - (1e-2 * 0.1 if parameter.dim() >= 2 else 0.0))
        # Adam's first step: both moments are unbiased by their first value.
        expected.append((decayed - 1e-2 * clipped / (clipped.abs() + 1e-8)).flatten())

    metrics = local.step(SAMPLES, objective, normalizer=20, agent=3)
    torch.testing.assert_close(weights(local), torch.cat(expected), rtol=0, atol=1e-6)
    assert metrics.agent == 3
    assert metrics.values["grad_norm"] == pytest.approx(float(norm), rel=1e-8)
    assert metrics.values["objective"] == pytest.approx(-float(loss.detach()), rel=1e-8)


def test_beta1_zero_means_that_no_turn_pushes_the_next():
    """With momentum a step on one agent's turns still moves the weights when the next gradient is 0."""
    for beta1, moves in [(0.9, True), (0.0, False)]:
        local = engine(beta1=beta1, weight_decay=0.0)
        local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20, agent=1)
        before = weights(local)
        still = SequenceObjective(
            old=by_key(SAMPLES, local.logprobs(SAMPLES)),
            advantages=dict.fromkeys([turn.key for turn in SAMPLES], 0.0),
            multiplicities={turn.trajectory: 1.0 for turn in SAMPLES},
        )
        local.step(SAMPLES, still, normalizer=20, agent=0)
        assert (not torch.equal(weights(local), before)) == moves


def test_moments_per_agent_start_fresh_for_each_turn():
    shared, separate = (engine(moments=moments, beta1=0.9) for moments in ("shared", "per_agent"))
    for local in (shared, separate):
        for agent in (1, 0):
            local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20, agent=agent)
    assert not torch.allclose(weights(shared), weights(separate))
    assert set(separate._optimizer.by_agent) == {0, 1}
    assert set(shared._optimizer.by_agent) == {None}


def test_only_what_is_named_is_trained():
    local = engine(trainable=(r"layers\.1\.mlp", "norm"))
    before = {name: weight.clone() for name, weight in local.weights()}
    local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20)
    moved = {name for name, weight in local.weights() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if "layers.1.mlp" in name or "norm" in name}
    with pytest.raises(ValueError, match=r"matches no parameter; names look like model\.embed_tokens\.weight"):
        engine(trainable=("lora",))


def test_gradient_checkpointing_changes_nothing_but_memory():
    plain, saving = engine(), engine(gradient_checkpointing=True)
    for local in (plain, saving):
        local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20)
    torch.testing.assert_close(weights(plain), weights(saving), rtol=0, atol=1e-12)


def test_the_reference_stays_where_it_was():
    local = engine(reference=True)
    before = torch.cat(local.logprobs(SAMPLES))
    local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20)
    assert torch.equal(torch.cat(local.logprobs(SAMPLES, policy="reference")), before)
    assert not torch.equal(torch.cat(local.logprobs(SAMPLES)), before)
    with pytest.raises(ValueError, match="keeps no reference policy; make it with reference=True"):
        engine().logprobs(SAMPLES, policy="reference")


def test_lora_trains_adapters_only_and_the_reference_is_the_model_without_them():
    local = engine(lora=LoraSettings(rank=2), reference=True)
    start = {name: weight.clone() for name, weight in local.weights()}
    before = torch.cat(local.logprobs(SAMPLES))
    torch.testing.assert_close(before, torch.cat(engine().logprobs(SAMPLES)))  # adapters start at 0
    for _ in range(2):
        local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20)
    moved = {name for name, weight in local.weights() if not torch.equal(weight, start[name])}
    assert moved == {name for name in start if "lora_" in name}
    torch.testing.assert_close(torch.cat(local.logprobs(SAMPLES, policy="reference")), before)
    assert float((torch.cat(local.logprobs(SAMPLES)) - before).abs().max()) > 1e-3
    sampler = LocalSampler(local.policy)
    sampler.submit(GenerationRequest(id="x", prompt_ids=(1, 2, 3), seed=0, parameters=SamplingParameters(max_tokens=6)))
    finished = []
    while not finished:
        finished = sampler.poll()
    (row,) = local.logprobs([Turn("x", 0, (1, 2, 3), finished[0].ids)])
    assert list(finished[0].logprobs) == pytest.approx(row.tolist(), abs=1e-10)


def test_lora_goes_on_exactly_after_save_and_load(tmp_path):
    one, other = (engine(lora=LoraSettings(rank=2, seed=seed)) for seed in (0, 1))
    one.step(SAMPLES, objective_for(one, SAMPLES), normalizer=20)
    one.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "adapter_config.json").exists()
    other.load(tmp_path / "saved")
    for local in (one, other):
        local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20)
    assert torch.equal(weights(one), weights(other))
    engine().save(tmp_path / "plain")
    with pytest.raises(ValueError, match="has no adapters; it was not saved by an engine with lora"):
        other.load(tmp_path / "plain")


def test_what_lora_cannot_do_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"trainable=.* and lora exclude each other"):
        engine(lora=LoraSettings(), trainable=("norm",))
    with pytest.raises(ValueError, match="rank is 0"):
        LoraSettings(rank=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"lora needs peft: pip install 'seeupo\[lora\]'"):
        engine(lora=LoraSettings())


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"warmup": 3}, [0.25, 0.5, 0.75, 1.0, 1.0]),
        ({"schedule": "linear", "iterations": 4}, [1.0, 0.75, 0.5, 0.25, 0.0]),
        ({"schedule": "cosine", "iterations": 4}, [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0]),
    ],
)
def test_the_learning_rate_follows_iterations_not_turns(settings, rates):
    chosen = OptimizerSettings(learning_rate=1.0, **settings)
    assert [chosen.rate_at(iteration) for iteration in range(5)] == pytest.approx(rates)
    local = engine(learning_rate=1.0, **settings)
    local.begin_iteration(1)
    for agent in (2, 1, 0):
        metrics = local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20, agent=agent)
        assert metrics.values["learning_rate"] == pytest.approx(rates[1])


@pytest.mark.parametrize("moments", ["shared", "per_agent"])
def test_training_goes_on_exactly_after_save_and_load(tmp_path, moments):
    one = engine(moments=moments)
    for agent in (1, 0):
        one.step(SAMPLES, objective_for(one, SAMPLES), normalizer=20, agent=agent)
    one.begin_iteration(5)
    one.save(tmp_path / "saved")
    other = engine(moments=moments, seed=9)
    other.load(tmp_path / "saved")
    assert other.iteration == 5
    for local in (one, other):
        for agent in (1, 0):
            local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20, agent=agent)
    assert torch.equal(weights(one), weights(other))


def test_what_is_saved_loads_in_transformers(tmp_path):
    local = engine()
    local.step(SAMPLES, objective_for(local, SAMPLES), normalizer=20)
    local.save(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float64).eval()
    expected = torch.cat(local.logprobs(SAMPLES))
    found = padded_logprobs(loaded, SAMPLES)
    torch.testing.assert_close(found.logprobs[found.mask].detach(), expected)
    with pytest.raises(ValueError, match="it is of another model"):
        engine(family="qwen3").load(tmp_path / "saved")


def test_what_the_model_cannot_take_is_refused_before_any_work():
    local = engine()
    before = weights(local)
    for turn, message in [
        (Turn("long", 1, (1,) * 120, (2,) * 9), r"turn \('long', 1\) has 129 tokens; the model takes 128"),
        (Turn("foreign", 0, (1,), (40,)), "contains token 40; the model knows 40"),
        (Turn("empty", 0, (), (1,)), "prompt without tokens"),
    ]:
        with pytest.raises(ValueError, match=message):
            local.logprobs([*SAMPLES, turn])
    assert torch.equal(weights(local), before)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone():
    local = engine()
    before = weights(local)
    broken = objective_for(local, SAMPLES)
    broken.advantages[SAMPLES[0].key] = math.inf
    with pytest.raises(FloatingPointError, match="the gradient of agent 2 is"):
        local.step(SAMPLES, broken, normalizer=20, agent=2)
    assert torch.equal(weights(local), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta1": 1.0}, r"beta1 is 1\.0.*\[0, 1\)"),
        ({"schedule": "step"}, "schedule is 'step'"),
        ({"schedule": "linear"}, "needs the number of iterations"),
        ({"moments": "each"}, "moments is 'each'"),
        ({"learning_rate": -1.0}, r"learning_rate is -1\.0"),
        ({"temperature": 0.0}, r"temperature is 0\.0; it must be positive"),
        ({"batch_tokens": 0}, "batch_tokens is 0"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        engine(**options)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_seeupo_trains_a_language_model_the_same_way_packed_and_padded(family):
    ends = []
    for packing in ("tree", "padded"):
        local = engine(packing=packing, family=family, reference=True, beta1=0.0)
        SeeUPO(kl_coef=0.01, entropy_coef=0.01, epochs=2).update(local, trajectories())
        ends.append(weights(local))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-7)


def test_training_is_bit_identical_when_repeated():
    ends = []
    for _ in range(2):
        local = engine(dtype=torch.float32)
        for iteration in range(3):
            local.begin_iteration(iteration)
            SeeUPO().update(local, trajectories(seed=iteration))
        ends.append(weights(local))
    assert torch.equal(*ends)


def test_seeupo_raises_the_probability_of_what_was_rewarded():
    local = engine(learning_rate=3e-3)
    batch = trajectories()
    best = max((t for t in batch if t.group == "0"), key=lambda t: t.reward)
    before = sum(float(row.sum()) for row in local.logprobs(best.turns))
    for _ in range(5):
        SeeUPO().update(local, batch)
    assert sum(float(row.sum()) for row in local.logprobs(best.turns)) > before + 1


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["full", "lora"])
def test_a_reference_kept_after_a_warm_start_is_saved_with_the_policy(lora, tmp_path):
    local = engine(lora=lora, reference=True)
    local.step(SAMPLES, LogLikelihood(), normalizer=1.0)
    local.snapshot_reference()
    kept = torch.cat(local.logprobs(SAMPLES))
    local.set_optimizer(OptimizerSettings(learning_rate=1e-2, beta1=0.0))
    local.step(SAMPLES, LogLikelihood(), normalizer=1.0)
    local.save(tmp_path)
    again = engine(lora=lora, reference=True, beta1=0.0)
    again.load(tmp_path)
    for each in (local, again):
        torch.testing.assert_close(torch.cat(each.logprobs(SAMPLES, policy="reference")), kept, rtol=0, atol=1e-6)
        assert not torch.allclose(torch.cat(each.logprobs(SAMPLES)), kept)
    assert torch.equal(torch.cat(local.logprobs(SAMPLES)), torch.cat(again.logprobs(SAMPLES)))


def test_other_settings_begin_with_a_fresh_optimizer():
    local = engine(learning_rate=1e-2)
    local.step(SAMPLES, LogLikelihood(), normalizer=1.0)
    local.set_optimizer(OptimizerSettings(learning_rate=0.0, trainable=("lm_head|embed",)))
    before = torch.cat(local.logprobs(SAMPLES))
    local.step(SAMPLES, LogLikelihood(), normalizer=1.0)
    assert torch.equal(torch.cat(local.logprobs(SAMPLES)), before)
