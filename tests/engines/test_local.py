import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from engines.examples import engine, objective_for, trajectories, weights
from engines.test_local_critic import TowardsReward
from models.examples import random_turns, small_model
from seeupo.algorithms import SeeUPO
from seeupo.algorithms.common.batch import logprobs_by_key
from seeupo.algorithms.common.objective import SequenceObjective
from seeupo.config.model_settings import LoraSettings
from seeupo.config.optimizer_settings import CriticOptimizerSettings, CriticSettings, OptimizerSettings
from seeupo.inference.local_sampler import LocalSampler
from seeupo.models.logprobs import padded_logprobs
from seeupo.training.warm_start import LogLikelihood
from seeupo.types import GenerationRequest, SamplingParameters, Turn, turns_of

TURNS = random_turns(0, count=20)


@pytest.mark.parametrize("packing", ["tree", "padded"])
def test_log_probs_have_the_order_of_the_turns(packing):
    local = engine(packing=packing, temperature=0.7)
    for turn, row in zip(TURNS, local.logprobs(TURNS), strict=True):
        alone = padded_logprobs(local.policy.model, [turn], temperature=0.7).logprobs[0]
        assert row.shape == (len(turn.action_ids),)
        torch.testing.assert_close(row, alone.detach())
        assert not row.requires_grad


@pytest.mark.parametrize("packing", ["tree", "padded"])
@pytest.mark.parametrize("batch_tokens", [16, 10_000])
def test_step_does_not_depend_on_micro_batches_or_packing(packing, batch_tokens):
    """Every way of splitting the batch must give one AdamW step on the whole batch, written out here."""
    local = engine(packing=packing, batch_tokens=batch_tokens, weight_decay=0.1, max_grad_norm=0.5)
    model = local.policy.model
    objective = objective_for(local, TURNS, entropy_coef=0.1)

    actual = padded_logprobs(model, TURNS, entropies=True)
    loss = -objective(actual.logprobs, actual.entropies, TURNS).sum() / 20
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    expected = []
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        clipped = gradient * min(1.0, 0.5 / float(norm))
        decayed = parameter.detach() * (1 - (1e-2 * 0.1 if parameter.dim() >= 2 else 0.0))
        # Adam's first step: bias correction makes both moments equal to their first value.
        expected.append((decayed - 1e-2 * clipped / (clipped.abs() + 1e-8)).flatten())

    metrics = local.step(TURNS, objective, normalizer=20, agent=3)
    torch.testing.assert_close(weights(local), torch.cat(expected), rtol=0, atol=1e-6)
    assert metrics.agent == 3
    assert metrics.values["grad_norm"] == pytest.approx(float(norm), rel=1e-8)
    assert metrics.values["objective"] == pytest.approx(-float(loss.detach()), rel=1e-8)


def test_beta1_zero_has_no_momentum_across_turns():
    """With momentum, a step on one agent's turns still changes the weights when the next gradient is 0."""
    for beta1, moves in [(0.9, True), (0.0, False)]:
        local = engine(beta1=beta1, weight_decay=0.0)
        local.step(TURNS, objective_for(local, TURNS), normalizer=20, agent=1)
        before = weights(local)
        still = SequenceObjective(
            old=logprobs_by_key(local, TURNS),
            advantages=dict.fromkeys([turn.key for turn in TURNS], 0.0),
            multiplicities={turn.trajectory: 1.0 for turn in TURNS},
        )
        local.step(TURNS, still, normalizer=20, agent=0)
        assert (not torch.equal(weights(local), before)) == moves


def test_moments_per_agent_are_separate():
    shared, separate = (engine(moments=moments, beta1=0.9) for moments in ("shared", "per_agent"))
    for local in (shared, separate):
        for agent in (1, 0):
            local.step(TURNS, objective_for(local, TURNS), normalizer=20, agent=agent)
    assert not torch.allclose(weights(shared), weights(separate))
    assert set(separate._optimizer.by_agent) == {0, 1}
    assert set(shared._optimizer.by_agent) == {None}


def test_only_trainable_parameters_are_trained():
    local = engine(trainable=(r"layers\.1\.mlp", "norm"))
    before = {name: weight.clone() for name, weight in local.weights()}
    local.step(TURNS, objective_for(local, TURNS), normalizer=20)
    changed = {name for name, weight in local.weights() if not torch.equal(weight, before[name])}
    assert changed == {name for name in before if "layers.1.mlp" in name or "norm" in name}
    with pytest.raises(ValueError, match=r"matches no parameter.* model\.embed_tokens\.weight"):
        engine(trainable=("lora",))
    with pytest.raises(ValueError, match=r"'layers\.7' matches no parameter"):
        engine(trainable=("norm", "layers.7"))


def test_gradient_checkpointing_does_not_change_the_step():
    plain, checkpointed = engine(), engine(gradient_checkpointing=True)
    for local in (plain, checkpointed):
        local.step(TURNS, objective_for(local, TURNS), normalizer=20)
    torch.testing.assert_close(weights(plain), weights(checkpointed), rtol=0, atol=1e-12)


def test_reference_policy_does_not_change():
    local = engine(reference=True)
    before = torch.cat(local.logprobs(TURNS))
    local.step(TURNS, objective_for(local, TURNS), normalizer=20)
    assert torch.equal(torch.cat(local.logprobs(TURNS, policy="reference")), before)
    assert not torch.equal(torch.cat(local.logprobs(TURNS)), before)
    with pytest.raises(ValueError, match=r"no reference policy; .*reference=True"):
        engine().logprobs(TURNS, policy="reference")


def test_lora_trains_adapters_only_and_the_reference_has_none():
    local = engine(lora=LoraSettings(rank=2), reference=True)
    start = {name: weight.detach().clone() for name, weight in local.policy.model.named_parameters()}
    before = torch.cat(local.logprobs(TURNS))
    torch.testing.assert_close(before, torch.cat(engine().logprobs(TURNS)))  # adapters start at 0
    for _ in range(2):
        local.step(TURNS, objective_for(local, TURNS), normalizer=20)
    changed = {name for name, weight in local.policy.model.named_parameters() if not torch.equal(weight, start[name])}
    assert changed == {name for name in start if "lora_" in name}
    torch.testing.assert_close(torch.cat(local.logprobs(TURNS, policy="reference")), before)
    assert float((torch.cat(local.logprobs(TURNS)) - before).abs().max()) > 1e-3
    sampler = LocalSampler(local.policy)
    sampler.submit(GenerationRequest(id="x", prompt_ids=(1, 2, 3), seed=0, parameters=SamplingParameters(max_tokens=6)))
    finished = []
    while not finished:
        finished = sampler.poll()
    (row,) = local.logprobs([Turn("x", 0, (1, 2, 3), finished[0].ids)])
    assert list(finished[0].logprobs) == pytest.approx(row.tolist(), abs=1e-10)


def test_lora_resumes_exactly_after_save_and_load(tmp_path):
    one, other = (engine(lora=LoraSettings(rank=2, seed=seed)) for seed in (0, 1))
    one.step(TURNS, objective_for(one, TURNS), normalizer=20)
    one.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "adapter_config.json").exists()
    other.load(tmp_path / "saved")
    for local in (one, other):
        local.step(TURNS, objective_for(local, TURNS), normalizer=20)
    assert torch.equal(weights(one), weights(other))
    engine().save(tmp_path / "plain")
    with pytest.raises(ValueError, match="has no policy/"):
        other.load(tmp_path / "plain")


def test_invalid_lora_settings_are_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"trainable=.* and lora exclude each other"):
        engine(lora=LoraSettings(), trainable=("norm",))
    with pytest.raises(ValueError, match="rank = 0"):
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
def test_learning_rate_follows_iterations_not_turns(settings, rates):
    optimizer = OptimizerSettings(learning_rate=1.0, **settings)
    assert [optimizer.rate_at(iteration) for iteration in range(5)] == pytest.approx(rates)
    local = engine(learning_rate=1.0, **settings)
    assert [local.learning_rate(iteration) for iteration in range(5)] == pytest.approx(rates)
    local.begin_iteration(1)
    for agent in (2, 1, 0):
        metrics = local.step(TURNS, objective_for(local, TURNS), normalizer=20, agent=agent)
        assert metrics.values["learning_rate"] == pytest.approx(rates[1])


@pytest.mark.parametrize("moments", ["shared", "per_agent"])
def test_training_resumes_exactly_after_save_and_load(tmp_path, moments):
    one = engine(moments=moments)
    for agent in (1, 0):
        one.step(TURNS, objective_for(one, TURNS), normalizer=20, agent=agent)
    one.begin_iteration(5)
    one.save(tmp_path / "saved")
    other = engine(moments=moments, seed=9)
    other.load(tmp_path / "saved")
    assert other.iteration == 5
    for local in (one, other):
        for agent in (1, 0):
            local.step(TURNS, objective_for(local, TURNS), normalizer=20, agent=agent)
    assert torch.equal(weights(one), weights(other))


def test_saved_engine_loads_in_transformers(tmp_path):
    local = engine()
    local.step(TURNS, objective_for(local, TURNS), normalizer=20)
    local.save(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float64).eval()
    expected = torch.cat(local.logprobs(TURNS))
    actual = padded_logprobs(loaded, TURNS)
    torch.testing.assert_close(actual.logprobs[actual.mask].detach(), expected)
    with pytest.raises(ValueError, match="no weights for"):
        engine(family="qwen3").load(tmp_path / "saved")


def test_invalid_turns_are_refused_before_any_computation():
    local = engine()
    before = weights(local)
    for turn, message in [
        (Turn("long", 1, (1,) * 120, (2,) * 9), r"turn \('long', 1\) has 129 tokens; the context is 128"),
        (Turn("foreign", 0, (1,), (40,)), "contains token 40; the vocabulary has 40"),
        (Turn("empty", 0, (), (1,)), "empty prompt"),
    ]:
        with pytest.raises(ValueError, match=message):
            local.logprobs([*TURNS, turn])
    assert torch.equal(weights(local), before)


def test_nonfinite_gradient_raises_and_keeps_the_weights():
    local = engine()
    before = weights(local)
    broken = objective_for(local, TURNS)
    broken.advantages[TURNS[0].key] = math.inf
    with pytest.raises(FloatingPointError, match="gradient norm of turn 3 is"):
        local.step(TURNS, broken, normalizer=20, agent=2)
    assert torch.equal(weights(local), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta1": 1.0}, r"beta1 = 1\.0.*\[0, 1\)"),
        ({"schedule": "step"}, "schedule = 'step'"),
        ({"schedule": "linear"}, "needs the number of iterations"),
        ({"moments": "each"}, "moments = 'each'"),
        ({"learning_rate": -1.0}, r"learning_rate = -1\.0"),
        ({"temperature": 0.0}, r"temperature = 0\.0: expected a positive"),
        ({"batch_tokens": 0}, "batch_tokens = 0"),
    ],
)
def test_invalid_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        engine(**options)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_seeupo_update_is_the_same_packed_and_padded(family):
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


def test_seeupo_raises_the_probability_of_rewarded_actions():
    local = engine(learning_rate=3e-3)
    batch = trajectories()
    best = max((t for t in batch if t.group == "0"), key=lambda t: t.reward)
    before = sum(float(row.sum()) for row in local.logprobs(best.turns))
    for _ in range(5):
        SeeUPO().update(local, batch)
    assert sum(float(row.sum()) for row in local.logprobs(best.turns)) > before + 1


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["full", "lora"])
def test_reference_snapshot_is_saved_with_the_policy(lora, tmp_path):
    local = engine(lora=lora, reference=True)
    local.step(TURNS, LogLikelihood(), normalizer=1.0)
    local.snapshot_reference()
    kept = torch.cat(local.logprobs(TURNS))
    local.set_optimizer(OptimizerSettings(learning_rate=1e-2, beta1=0.0))
    local.step(TURNS, LogLikelihood(), normalizer=1.0)
    local.save(tmp_path)
    again = engine(lora=lora, reference=True, beta1=0.0)
    again.load(tmp_path)
    for side in (local, again):
        torch.testing.assert_close(torch.cat(side.logprobs(TURNS, policy="reference")), kept, rtol=0, atol=1e-6)
        assert not torch.allclose(torch.cat(side.logprobs(TURNS)), kept)
    assert torch.equal(torch.cat(local.logprobs(TURNS)), torch.cat(again.logprobs(TURNS)))


def test_set_optimizer_resets_the_optimizer_state():
    local = engine(learning_rate=1e-2)
    local.step(TURNS, LogLikelihood(), normalizer=1.0)
    local.set_optimizer(OptimizerSettings(learning_rate=0.0, trainable=("lm_head|embed",)))
    before = torch.cat(local.logprobs(TURNS))
    local.step(TURNS, LogLikelihood(), normalizer=1.0)
    assert torch.equal(torch.cat(local.logprobs(TURNS)), before)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["full", "lora"])
def test_weights_and_export_are_the_policy_with_adapters_merged(lora, tmp_path):
    local = engine(lora=lora)
    for _ in range(2):
        local.step(TURNS, objective_for(local, TURNS), normalizer=20)
    copy = small_model()
    names = dict(copy.named_parameters())
    actual = dict(local.weights())
    assert actual.keys() == names.keys()
    assert not any(weight.requires_grad for weight in actual.values())
    copy.load_state_dict(actual, strict=False)
    local.export(tmp_path)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    for model, tolerance in ((copy, 1e-10), (exported, 1e-5)):
        row = padded_logprobs(model, TURNS)
        expected = torch.cat(local.logprobs(TURNS))
        torch.testing.assert_close(row.logprobs[row.mask].detach(), expected, rtol=0, atol=tolerance)


def test_engine_owns_its_model_only():
    local = engine()
    assert local.owns(local.policy.model)
    assert not local.owns(small_model())


def test_reset_critic_restarts_from_the_current_policy():
    local = engine(critic=CriticSettings(optimizer=CriticOptimizerSettings(learning_rate=1e-1)))
    batch = trajectories()
    values = TowardsReward({trajectory.id: trajectory.reward for trajectory in batch})
    local.step_critic(turns_of(batch), values, normalizer=8)
    assert torch.cat(local.values(batch)).any()
    local.reset_critic()
    assert not torch.cat(local.values(batch)).any()
    engine().reset_critic()  # without a critic there is nothing to do
