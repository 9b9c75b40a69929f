"""Weight sync from an engine to samplers, with and without shared memory."""

import pytest
import torch

from engines.examples import engine, objective_for, policy, request, run, trajectories
from models.examples import random_turns
from seeupo.config.model_settings import LoraSettings
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.engines.local import LocalEngine
from seeupo.inference.local_sampler import LocalSampler
from seeupo.inference.padded_sampler import PaddedSampler
from seeupo.types import Turn, turns_of

SAMPLERS = pytest.mark.parametrize("sampler_class", [LocalSampler, PaddedSampler])
TURNS = random_turns(0)


def train(local: LocalEngine) -> None:
    """Take two steps, so that both factors of an adapter are trained."""
    turns = turns_of(trajectories())
    for _ in range(2):
        local.step(turns, objective_for(local, turns), normalizer=8)


def largest_difference(local: LocalEngine, sampler) -> float:
    """Return the largest difference between a completion's log-probs and those of the engine."""
    completion = run(sampler, [request("a", (1, 2, 3), temperature=1.0, episode="a")])["a"]
    (row,) = local.logprobs([Turn("a", 0, (1, 2, 3), completion.ids)])
    return float((row - torch.tensor(completion.logprobs, dtype=row.dtype)).abs().max())


@SAMPLERS
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["full", "lora"])
def test_sampler_on_a_separate_copy_has_the_engines_weights_after_sync(sampler_class, lora):
    local = engine(lora=lora)
    sampler = sampler_class(policy())
    assert not local.owns(sampler.policy.model)
    train(local)
    assert largest_difference(local, sampler) > 1e-3  # fills the caches with the old weights
    sampler.sync(local, version=7)
    assert largest_difference(local, sampler) < 1e-10
    assert run(sampler, [request("b", (1, 2))])["b"].version == 7
    train(local)
    assert largest_difference(local, sampler) > 1e-3  # it is a copy


@SAMPLERS
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["full", "lora"])
def test_sampler_on_the_engines_model_copies_nothing(sampler_class, lora, monkeypatch):
    local = engine(lora=lora)
    sampler = sampler_class(local.policy)
    largest_difference(local, sampler)
    train(local)
    monkeypatch.setattr(local, "weights", lambda: pytest.fail("weights were copied"))
    sampler.sync(local, version=1)
    assert largest_difference(local, sampler) < 1e-10
    assert sampler.version == 1


@SAMPLERS
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["full", "lora"])
def test_sampling_from_shared_weights_that_changed_without_sync_is_refused(sampler_class, lora):
    local = engine(lora=lora)
    sampler = sampler_class(local.policy)
    for version in (1, 2):
        largest_difference(local, sampler)
        train(local)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"since version {version - 1} was synced; call sampler\.sync"):
                sampler.submit(request("a", (1, 2, 3)))
        sampler.sync(local, version)
    assert largest_difference(local, sampler) < 1e-10


def test_loading_a_checkpoint_without_sync_is_noticed(tmp_path):
    local = engine()
    sampler = LocalSampler(local.policy)
    local.save(tmp_path)
    sampler.submit(request("a", (1, 2)))
    while not sampler.poll():
        pass
    local.load(tmp_path)
    with pytest.raises(RuntimeError, match="the weights have changed"):
        sampler.submit(request("b", (1, 2)))


def test_sync_drops_cached_prompts_and_episodes():
    local = engine()
    sampler = LocalSampler(local.policy)
    for prefilled in (2, 4):
        run(sampler, [request("a", (1, 2, 3), episode="one")])
        assert sampler.prefilled_tokens == prefilled
        sampler.sync(local, version=prefilled)


@SAMPLERS
def test_sync_is_refused_while_requests_are_queued_or_running(sampler_class):
    local = engine()
    sampler = sampler_class(policy())
    sampler.submit(request("a", (1, 2), max_tokens=3))
    with pytest.raises(RuntimeError, match="poll until all have finished"):
        sampler.sync(local, version=1)
    assert sampler.poll() == []
    with pytest.raises(RuntimeError, match="poll until all have finished"):
        sampler.sync(local, version=1)
    while not sampler.poll():
        pass
    sampler.sync(local, version=1)
    assert sampler.version == 1


def test_release_frees_the_caches_and_keeps_the_weights():
    local = engine()
    sampler = LocalSampler(local.policy)
    run(sampler, [request("a", range(1, 9), episode="one", max_tokens=100)])
    assert sampler._cache.capacity > 64
    sampler.release()
    assert not sampler._tree.tokens
    assert not sampler._episodes
    assert sampler._cache.capacity == 64
    assert largest_difference(local, sampler) < 1e-10
    sampler.submit(request("b", (1, 2)))
    with pytest.raises(RuntimeError, match="poll until all have finished"):
        sampler.release()


def test_release_and_sync_drop_the_snapshot_of_the_weights():
    local = engine(lora=LoraSettings(rank=2))
    sampler = LocalSampler(local.policy)
    for drop in (sampler.release, lambda: sampler.sync(local, version=1)):
        assert largest_difference(local, sampler) < 1e-10
        assert sampler._decoder._weights is not None
        drop()
        assert sampler._decoder._weights is None


class Source:
    """A weight source with the given weights."""

    def __init__(self, weights):
        self.given = weights

    def owns(self, model):
        return False

    def weights(self):
        yield from self.given.items()


@SAMPLERS
def test_weights_of_another_model_are_refused(sampler_class):
    sampler = sampler_class(policy())
    complete = {name: weight.detach() for name, weight in sampler.policy.model.named_parameters()}
    name = "model.norm.weight"
    for weights, message in [
        ({**complete, "foreign": torch.zeros(1)}, "'foreign'"),
        ({**complete, name: complete[name][:1]}, rf"'{name}' has shape \(1,\).* \(32,\)"),
        ({other: weight for other, weight in complete.items() if other != name}, f"no weight '{name}'"),
    ]:
        with pytest.raises(ValueError, match=message):
            sampler.sync(Source(weights), version=1)
        assert sampler.version == 0
    with pytest.raises(ValueError, match=r"q_norm.*load the same model"):
        sampler.sync(engine(family="qwen3"), version=1)


def test_sync_converts_to_the_samplers_dtype():
    local = engine()
    train(local)
    sampler = LocalSampler(policy(dtype=torch.float32))
    sampler.sync(local, version=1)
    assert sampler.policy.model.dtype == torch.float32
    assert largest_difference(local, sampler) < 1e-4


def test_synced_copy_gives_the_same_log_probs_in_another_engine():
    local, other = engine(lora=LoraSettings(rank=2)), policy()
    train(local)
    PaddedSampler(other).sync(local, version=1)
    rows = LocalEngine(other, OptimizerSettings()).logprobs(TURNS)
    torch.testing.assert_close(torch.cat(rows), torch.cat(local.logprobs(TURNS)), rtol=0, atol=1e-10)
