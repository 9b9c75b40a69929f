"""Cluster engines on the small models of the local engine's tests."""

from __future__ import annotations

from functools import partial

import torch

from engines.examples import TOKENIZER
from models.examples import small_model
from seeupo.engines.cluster.engine import ClusterEngine
from seeupo.engines.cluster.rank import RankPlan
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.models.loading import LoadedPolicy


def load_small(packing, dtype, family, seed, compute_dtype=None) -> LoadedPolicy:
    return LoadedPolicy(small_model(family, dtype, seed), TOKENIZER, "test", packing, compute_dtype=compute_dtype)


def cluster_engine(
    ranks,
    *,
    packing="tree",
    dtype=torch.float64,
    family="llama",
    seed=0,
    batch_tokens=64,
    replicas=1,
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
        cpu_offload=False,
        threads=1,
    )
    return ClusterEngine(plan, lambda: ranks, packing=packing)
