import itertools
from dataclasses import replace

import pytest
import torch

from campaigns import nightly_except
from distributed.examples import assert_trains_like_one_process, cluster_engine, unequal_trajectories
from engines.examples import engine, weights
from seeupo.algorithms import GRPO, PPO, SeeUPO
from seeupo.algorithms.common.trust_region import TrustRegionSettings
from seeupo.config.model_settings import LoraSettings
from seeupo.config.optimizer_settings import CriticOptimizerSettings, CriticSettings
from seeupo.distributed.rank_group import RankGroup
from seeupo.types import turns_of

pytestmark = pytest.mark.cluster

CRITIC = CriticSettings(optimizer=CriticOptimizerSettings(learning_rate=1e-2))
TOP = (r"layers\.1\.", "lm_head")
REGION = TrustRegionSettings(kl=0.02, backtracks=10)
"""A limit that shrinks steps of 1e-2."""
CASES = {
    "seeupo": (SeeUPO(kl_coef=0.01, entropy_coef=0.01), {"reference": True}),
    "seeupo-lora": (SeeUPO(kl_coef=0.01), {"reference": True, "lora": LoraSettings(rank=2)}),
    "seeupo-region": (SeeUPO(trust_region=REGION, turns_per_agent=2), {}),
    "seeupo-region-lora": (SeeUPO(trust_region=REGION), {"lora": LoraSettings(rank=2)}),
    "seeupo-adapters": (
        SeeUPO(kl_coef=0.01, trust_region=REGION, turns_per_agent=2),
        {"reference": True, "lora": LoraSettings(rank=2, per_turn=2, turns_per_agent=2)},
    ),
    "grpo-adapters": (GRPO(), {"reference": True, "lora": LoraSettings(rank=2, per_turn=3, layers=1)}),
    "seeupo-checkpointing": (SeeUPO(), {"gradient_checkpointing": True}),
    "seeupo-padded": (SeeUPO(), {"packing": "padded"}),
    "seeupo-trunk": (SeeUPO(kl_coef=0.01), {"reference": True, "trainable": TOP}),
    "seeupo-trunk-part": (SeeUPO(), {"trainable": TOP, "trunk_bytes": 10_000, "gradient_checkpointing": True}),
    "seeupo-trunk-lora": (SeeUPO(kl_coef=0.01), {"reference": True, "lora": LoraSettings(rank=2, layers=1)}),
    "grpo": (GRPO(kl_coef=0.01), {"reference": True}),
    "ppo": (PPO(), {"critic": CRITIC}),
    "ppo-head": (PPO(), {"critic": replace(CRITIC, backbone="policy")}),
}


VARIANTS = ("seeupo-lora", "seeupo-region", "grpo-adapters", "seeupo-checkpointing", "seeupo-trunk")
"""Cases whose options others have as well: `make nightly` runs them, and all cases in float32."""
ALWAYS = [("seeupo", "float32"), *((case, "float64") for case in CASES if case not in VARIANTS)]


@pytest.mark.parametrize(("case", "dtype"), nightly_except(ALWAYS, itertools.product(CASES, ["float64", "float32"])))
def test_two_ranks_train_like_one_process(case, dtype, two_ranks):
    algorithm, options = CASES[case]
    options = {**options, "dtype": getattr(torch, dtype)}
    tolerance = {"float64": 1e-8, "float32": 1e-3}[dtype]
    assert_trains_like_one_process(algorithm, cluster_engine(two_ranks, **options), tolerance=tolerance, **options)


@pytest.mark.parametrize("sharding", [{"replicas": 2}, {"cpu_offload": True}], ids=["replicas", "cpu_offload"])
@pytest.mark.parametrize("case", nightly_except(["seeupo-lora", "ppo"], ["seeupo", "seeupo-lora", "grpo", "ppo"]))
def test_two_ranks_train_like_one_process_with_other_sharding(case, sharding, two_ranks):
    algorithm, options = CASES[case]
    cluster = cluster_engine(two_ranks, **sharding, **options)
    assert_trains_like_one_process(algorithm, cluster, tolerance=1e-8, **options)


def test_adapters_that_two_ranks_saved_are_resumed_by_one_rank_and_by_the_local_engine(two_ranks, tmp_path):
    algorithm, options = CASES["seeupo-adapters"]
    saved = cluster_engine(two_ranks, **options)
    algorithm.update(saved, unequal_trajectories(0))
    saved.save(tmp_path)
    start = weights(saved)
    algorithm.update(saved, unequal_trajectories(1))
    after = weights(saved)
    one_rank = RankGroup(1, call_seconds=300)
    try:
        for side in (engine(**options), cluster_engine(one_rank, **options)):
            side.load(tmp_path)
            torch.testing.assert_close(weights(side), start, rtol=0, atol=0)
            algorithm.update(side, unequal_trajectories(1))  # the moments are the same, too
            torch.testing.assert_close(weights(side), after, rtol=0, atol=1e-8)
    finally:
        one_rank.close()


MIXED_CASES = {
    "seeupo": (torch.float32, CASES["seeupo"]),
    "seeupo-reference": (
        torch.float32,
        (SeeUPO(kl_coef=0.01), {"reference": True, "reference_dtype": torch.bfloat16}),
    ),
    "seeupo-lora": (torch.bfloat16, CASES["seeupo-lora"]),
    "ppo": (torch.float32, CASES["ppo"]),
    "ppo-lora": (torch.bfloat16, (PPO(), {"critic": CRITIC, "lora": LoraSettings(rank=2)})),
}


@pytest.mark.parametrize("case", nightly_except(["seeupo-reference", "seeupo-lora", "ppo-lora"], MIXED_CASES))
def test_two_ranks_train_in_mixed_precision(case, two_ranks):
    stored, (algorithm, options) = MIXED_CASES[case]
    exact = engine(dtype=torch.float32, **{**options, "reference_dtype": None})
    cluster = cluster_engine(two_ranks, dtype=stored, compute_dtype=torch.bfloat16, **options)
    batch, starts = unequal_trajectories(0), [weights(exact), weights(cluster)]
    for one, two in zip(exact.logprobs(turns_of(batch)), cluster.logprobs(turns_of(batch)), strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=0.01)
        assert not torch.equal(two, one)
    for side in (exact, cluster):
        side.begin_iteration(0)
        algorithm.update(side, batch, generator=torch.Generator().manual_seed(0))
    moved = [weights(side).float() - start.float() for side, start in zip((exact, cluster), starts, strict=True)]
    assert starts[1].dtype == stored
    assert float(torch.cosine_similarity(*moved, dim=0)) > 0.9
    if "critic" in options:
        values = torch.cat(cluster.values(batch))
        assert values.dtype == torch.float32
        assert not torch.equal(values, values.bfloat16().float())
