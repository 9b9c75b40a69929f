"""Ranks that read the weights one at a time have the same engine as those that load the whole model."""

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from distributed.test_cluster_engine import CASES, unequal_trajectories
from engines.examples import weights
from planning.peak_memory import PeakMemory
from seeupo.config.model_settings import LoraSettings, TinyConfig
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.distributed.cluster_engine import ClusterEngine
from seeupo.distributed.rank import Rank, RankPlan
from seeupo.engines.local import LocalEngine
from seeupo.models.loading import load_policy
from seeupo.models.saving import save_model
from seeupo.models.streaming import WeightStream, can_stream, stored_weights

SETTINGS = OptimizerSettings(learning_rate=1e-2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model in several files, as large models are stored."""
    path = tmp_path_factory.mktemp("model")
    policy = load_policy("tiny", tiny=TinyConfig(width=32, layers=3, heads=2, context=128))
    policy.model.save_pretrained(path, max_shard_size="40KB")
    policy.tokenizer.save_pretrained(path)
    assert len(list(path.glob("*.safetensors"))) > 2
    return str(path)


def streamed(folder, dtype, options) -> RankPlan:
    stream = WeightStream(folder, "cpu", dtype, options.get("lora") is not None, "tree")
    return RankPlan(None, SETTINGS, {"batch_tokens": 64, **options}, 1, False, 1, stream)


@pytest.mark.cluster
@pytest.mark.parametrize("case", ["seeupo", "seeupo-lora", "ppo"])
def test_ranks_that_stream_train_like_one_process_that_loads(case, folder, two_ranks):
    algorithm, options = CASES[case]
    lora = options.get("lora") is not None
    policy = load_policy(folder, device="cpu", dtype="float64", frozen=lora)
    local = LocalEngine(policy, SETTINGS, batch_tokens=64, **options)
    cluster = ClusterEngine(streamed(folder, "float64", options), lambda: two_ranks, packing="tree")
    start = weights(local)
    torch.testing.assert_close(weights(cluster), start, rtol=0, atol=0)
    batch = unequal_trajectories(0)
    for side in (local, cluster):
        side.begin_iteration(0)
        algorithm.update(side, batch, generator=torch.Generator().manual_seed(0))
    moved = weights(local) - start
    assert float(moved.norm()) > 0.01
    assert float((weights(cluster) - start - moved).norm() / moved.norm()) < 1e-8


@pytest.fixture
def first_of_eight():
    """The process group of a rank whose seven peers do not exist; nothing that a rank does at its start needs them."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


class HostMemory(PeakMemory):
    """Counts neither weights on the meta device nor the whole of a weight of which this rank has a part."""

    def _add(self, tensor):
        tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if not tensor.is_meta:
            super()._add(tensor)


@pytest.mark.parametrize(
    "options", [{}, {"reference": True}, {"lora": LoraSettings(rank=2)}], ids=["full", "reference", "lora"]
)
def test_a_rank_never_has_the_whole_model(options, folder, first_of_eight):
    sizes = [weight.nbytes for weight in load_policy(folder).model.parameters()]
    copies = 2 if options.get("reference") else 1
    with HostMemory() as memory:
        rank = Rank(0, 8)
        rank.build(streamed(folder, "float32", options))
    assert all(not parameter.is_meta for parameter in rank.engine.policy.model.parameters())
    adapters = sum(p.numel() * 4 for n, p in rank.engine.policy.model.named_parameters() if ".lora_" in n)
    # Its part of every weight, padded by up to a row, a whole weight on its way, and rotary frequencies.
    assert memory.peak < copies * sum(sizes) / 4 + 2 * max(sizes) + 3 * adapters
    assert memory.peak < 0.75 * sum(sizes)


def test_models_that_are_not_stored_weight_by_weight_are_loaded_as_a_whole(folder, tmp_path):
    policy = load_policy(folder)
    assert can_stream(folder, policy.model)
    assert not can_stream("tiny", load_policy("tiny").model)
    renamed = tmp_path / "renamed"
    save_model(policy.model, policy.tokenizer, renamed)
    file = renamed / "model.safetensors"
    tensors = {name.removeprefix("model."): weight for name, weight in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    assert not can_stream(str(renamed), policy.model)
    assert set(stored_weights(str(renamed))) == set(tensors)


@pytest.mark.parametrize(("dtype", "frozen"), [("float32", False), ("bfloat16", True), ("float64", False)])
def test_an_empty_policy_has_the_types_buffers_and_settings_of_a_loaded_one(folder, dtype, frozen):
    loaded = load_policy(folder, device="cpu", dtype=dtype, frozen=frozen)
    empty = WeightStream(folder, "cpu", dtype, frozen, "tree").policy()
    assert all(parameter.is_meta for parameter in empty.model.parameters())

    def kinds(model):
        return {name: (tuple(p.shape), p.dtype) for name, p in model.named_parameters()}

    assert kinds(empty.model) == kinds(loaded.model)
    torch.testing.assert_close(dict(empty.model.named_buffers()), dict(loaded.model.named_buffers()), rtol=0, atol=0)
    assert (empty.compute_dtype, empty.model.training) == (loaded.compute_dtype, loaded.model.training)
    assert empty.model.generation_config.to_dict() == loaded.model.generation_config.to_dict()
    read = dict(WeightStream(folder, "cpu", dtype, frozen, "tree").weights(empty.model))
    assert read.keys() == kinds(loaded.model).keys()
