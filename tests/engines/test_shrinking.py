import pytest
import torch

from algorithms.examples import network_engine, ragged_problem, sampled, weights_of
from engines.examples import engine, objective_for, weights
from models.examples import random_turns
from seeupo.config.model_settings import LoraSettings
from seeupo.engines.optimizer import shrinkable
from seeupo.types import turns_of

TURNS = random_turns(0, count=20)
OPTIONS = {"full weights": {}, "adapters": {"lora": LoraSettings(rank=2)}, "some": {"trainable": (r"layers\.1\.mlp",)}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_steps_are_shrunk_and_undone(options):
    local = engine(**options)
    trained = {name: p for name, p in local.policy.model.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in trained.items()}
    with local.shrinkable_steps() as shrink:
        for _ in range(2):
            local.step(TURNS, objective_for(local, TURNS), normalizer=20)
        change = {name: p.detach() - before[name] for name, p in trained.items()}
        assert any(delta.abs().max() > 1e-3 for delta in change.values())
        for factor in (0.5, 0.25):
            shrink(0.5)
            for name, parameter in trained.items():
                torch.testing.assert_close(parameter.detach(), before[name] + factor * change[name])
        shrink(0.0)
        for name, parameter in trained.items():
            assert torch.equal(parameter.detach(), before[name])


def test_moments_stay_as_the_steps_left_them():
    kept, undone = engine(), engine()
    start = weights(kept)
    for local in (kept, undone):
        with local.shrinkable_steps() as shrink:
            local.step(TURNS, objective_for(local, TURNS), normalizer=20)
            if local is undone:
                shrink(0.0)
    assert torch.equal(weights(undone), start)
    for name, moment in kept._optimizer.tensors().items():
        assert torch.equal(undone._optimizer.tensors()[name], moment)


def test_log_probs_are_those_of_the_shrunk_weights():
    exact = network_engine(ragged_problem())
    turns, start = turns_of(sampled(exact)), weights_of(exact).clone()
    before = torch.cat(exact.logprobs(turns))
    with exact.shrinkable_steps() as shrink:
        for parameter in exact.policy.parameters().values():
            parameter.detach().add_(1.0)
        moved = torch.cat(exact.logprobs(turns))
        shrink(0.0)
    assert not torch.equal(moved, before)
    assert torch.equal(torch.cat(exact.logprobs(turns)), before)
    assert torch.equal(weights_of(exact), start)


def test_weights_that_are_not_finite_can_be_restored():
    parameter = torch.tensor([1.0, 2.0], requires_grad=True)
    with shrinkable({"weight": parameter}) as shrink:
        parameter.detach().copy_(torch.tensor([float("nan"), float("inf")]))
        shrink(0.5)
        shrink(0.0)
    assert parameter.tolist() == [1.0, 2.0]


def test_engines_declare_that_their_steps_can_be_shrunk():
    assert "shrink" in engine().capabilities
    assert "shrink" in network_engine(ragged_problem()).capabilities
