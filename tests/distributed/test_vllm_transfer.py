"""The trainer's side of vLLM's weight transfer, as far as it runs without GPUs: with vLLM's own classes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engines.examples import engine
from inference.test_sync import train
from seeupo.config.model_settings import LoraSettings
from seeupo.distributed.cluster_engine import ClusterEngine
from seeupo.distributed.direct_transfer import DirectTransfer
from seeupo.distributed.rank import Rank, RankPlan
from seeupo.distributed.vllm_sampler import VllmSampler

pytest.importorskip("vllm", reason="vLLM is not installed; `make vllm-test` runs these tests")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

LORA = LoraSettings(rank=2)
UPDATE = ["start_weight_update", "update_weights", "finish_weight_update"]


class FakeActor:
    """Records what a Ray actor with a sampler would receive."""

    def __init__(self):
        self.calls = []
        self.call = self

    def remote(self, method, *arguments):
        self.calls.append((method, *arguments))


class FakeGroup:
    """Records what NCCL would broadcast."""

    def __init__(self):
        self.sent = []

    def broadcast(self, tensor, src, stream):
        assert src == 0
        self.sent.append(tensor.clone())


@pytest.fixture
def plan():
    from seeupo.distributed.vllm_transfer import TransferPlan

    actors = {2: FakeActor(), 0: FakeActor()}
    return TransferPlan(DirectTransfer("nccl", 2, "float32"), actors, "tcp://10.0.0.1:1234", 60.0)


@pytest.fixture
def group(monkeypatch):
    """Replace NCCL and CUDA streams; vLLM's protocol around them stays."""
    from vllm.distributed.weight_transfer import nccl_engine

    from seeupo.distributed import vllm_transfer

    made = FakeGroup()
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(vllm_transfer.SamplerClient, "_wait", lambda self, calls: None)
    original = vllm_transfer.TransferPlan.init_info
    monkeypatch.setattr(
        vllm_transfer.TransferPlan, "init_info", lambda self, rank: replace(original(self, rank), packed=False)
    )
    return made


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_source_yields_the_merged_weights_that_its_metadata_declare(lora):
    from seeupo.distributed.vllm_transfer import PolicyWeights

    local = engine(lora=lora)
    train(local)
    source = PolicyWeights(local, torch.float32)
    declared = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    for _ in range(2):  # each pass is a fresh one
        assert [(name, weight.dtype, tuple(weight.shape)) for name, weight in source] == declared
    expected = dict(local.weights())
    for name, weight in source:
        torch.testing.assert_close(weight, expected[name].float(), rtol=0, atol=0)
    assert [name for group in source.groups() for name in group]  # vLLM's partition accepts the names


def test_every_sampler_gets_ranks_of_its_own(plan, group):
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo

    from seeupo.distributed.vllm_transfer import WeightSender

    WeightSender(plan, 0, engine())
    infos = []
    for number in (0, 2):
        ((method, info),) = plan.samplers[number].calls
        assert method == "init_weight_transfer_engine"
        infos.append(NCCLWeightTransferInitInfo(**info))
    assert [info.rank_offset for info in infos] == [1, 3]  # rank 0 sends; each sampler has two GPUs
    assert {(info.world_size, info.master_address, info.master_port) for info in infos} == {(5, "10.0.0.1", 1234)}


def test_weights_are_sent_by_vllms_sender(plan, group):
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

    from seeupo.distributed.vllm_transfer import WeightSender

    local = engine(lora=LORA)
    train(local)
    sender = WeightSender(plan, 0, local)
    sender.send(7)
    expected = dict(local.weights())
    for actor in plan.samplers.values():
        start, update, finish = actor.calls[1:]
        assert start == ("start_weight_update",)
        info = NCCLWeightTransferUpdateInfo(**update[1])
        assert info.names == list(expected)
        assert set(info.dtype_names) == {"float32"}
        assert finish == ("finish_weight_update", 7)
    for sent, weight in zip(group.sent, expected.values(), strict=True):
        torch.testing.assert_close(sent, weight.float(), rtol=0, atol=0)


class OneRank:
    """A group of one rank in this process."""

    call_seconds = 60.0

    def __init__(self, local):
        self.rank, self.called = Rank(0, 1), []
        self.rank.engine = local

    def call(self, method, *arguments):
        self.called.append(method)
        return [None if method == "build" else getattr(self.rank, method)(*arguments)]


def test_cluster_engine_connects_with_new_samplers_only(plan, group):
    local = engine()
    ranks = OneRank(local)
    rank_plan = RankPlan(lambda: local.policy, local.settings, {}, replicas=1, cpu_offload=False, threads=1)
    cluster = ClusterEngine(rank_plan, lambda: ranks, packing="tree")
    transfer, samplers = plan.transfer, dict(plan.samplers)
    for version in (3, 4):
        train(local)
        cluster.send_weights(samplers, version, transfer)
        sent, group.sent = group.sent, []
        for tensor, (_, weight) in zip(sent, local.weights(), strict=True):
            torch.testing.assert_close(tensor, weight.float(), rtol=0, atol=0)
    for actor in samplers.values():
        assert [method for method, *_ in actor.calls] == ["init_weight_transfer_engine", *UPDATE, *UPDATE]
        assert [arguments for method, *arguments in actor.calls if method == UPDATE[-1]] == [[3], [4]]
    samplers[0] = FakeActor()  # a replacement
    cluster.send_weights(samplers, 5, transfer)
    assert [method for method, *_ in samplers[0].calls] == ["init_weight_transfer_engine", *UPDATE]
    assert ranks.called.count("connect_samplers") == 2


def test_other_ranks_gather_but_call_no_sampler(plan, group):
    from seeupo.distributed.vllm_transfer import WeightSender

    WeightSender(plan, 1, engine()).send(1)
    assert not group.sent
    assert not any(actor.calls for actor in plan.samplers.values())


def test_shared_gpus_use_ipc(plan):
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    info = replace(plan, transfer=replace(plan.transfer, backend="ipc")).init_info(3)
    assert isinstance(info, IPCTrainerInitInfo)
    assert (info.backend, info.rank, info.packed) == ("ipc", 3, True)


def test_client_and_sampler_have_the_methods_that_vllm_calls(plan):
    from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient

    from seeupo.distributed.vllm_transfer import SamplerClient

    assert isinstance(SamplerClient(plan), VLLMWeightSyncClient)
    for name in (
        "init_weight_transfer_engine",
        "start_weight_update",
        "update_weights",
        "finish_weight_update",
    ):
        assert callable(getattr(VllmSampler, name))
