"""Cluster engines on the small models of the local engine's tests."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from engines.examples import TOKENIZER, engine, trajectories, weights
from models.examples import small_model
from seeupo.algorithms import SeeUPO
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.distributed.cluster_engine import ClusterEngine
from seeupo.distributed.rank import RankPlan
from seeupo.models.loading import LoadedPolicy


def load_small(packing, dtype, family, seed, compute_dtype=None) -> LoadedPolicy:
    return LoadedPolicy(small_model(family, dtype, seed), TOKENIZER, packing, compute_dtype=compute_dtype)


def cluster_engine(
    ranks,
    *,
    packing="tree",
    dtype=torch.float64,
    family="llama",
    seed=0,
    batch_tokens=64,
    replicas=1,
    cpu_offload=False,
    compute_dtype=None,
    **options,
) -> ClusterEngine:
    """Return an engine with the defaults of `engines.examples.engine`."""
    settings = {name: options.pop(name) for name in list(options) if hasattr(OptimizerSettings, name)}
    plan = RankPlan(
        load=partial(load_small, packing, dtype, family, seed, compute_dtype),
        optimizer=OptimizerSettings(**{"learning_rate": 1e-2, **settings}),
        options={"batch_tokens": batch_tokens, "row_tokens": 32, **options},
        replicas=replicas,
        cpu_offload=cpu_offload,
        threads=1,
    )
    return ClusterEngine(plan, lambda: ranks, packing=packing)


def unequal_trajectories(seed: int):
    """Trajectories of different lengths; the last turns have too few turns for every rank to have one."""
    made = trajectories(4, seed=seed)
    return [
        replace(trajectory, turns=trajectory.turns[: 4 if index == 0 else 1 + index % 3])
        for index, trajectory in enumerate(made)
    ]


def assert_trains_like_one_process(algorithm, cluster, *, tolerance, **options):
    """Train the cluster engine and a local one with the same options for two iterations, and compare both."""
    local = engine(**options)
    start = weights(local)
    torch.testing.assert_close(weights(cluster), start, rtol=0, atol=0)
    for iteration in range(2):
        batch = unequal_trajectories(iteration)
        updates = []
        for side in (local, cluster):
            side.begin_iteration(iteration)
            generator = torch.Generator().manual_seed(iteration)
            updates.append(algorithm.update(side, batch, generator=generator))
        for one, two in zip(updates[0].metrics, updates[1].metrics, strict=True):
            assert two.agent == one.agent
            assert dict(two.values) == pytest.approx(dict(one.values), rel=100 * tolerance, abs=100 * tolerance)
    if isinstance(algorithm, SeeUPO) and algorithm.trust_region is not None:
        scales = [values.values["step_scale"] for values in updates[0].metrics if values.agent is not None]
        assert any(0 < scale < 1 for scale in scales)
    moved, moved_cluster = weights(local) - start, weights(cluster) - start
    assert float(moved.norm()) > 0.01
    assert float((moved_cluster - moved).norm() / moved.norm()) < tolerance
