"""Ranks on the nodes of a simulated cluster, with hybrid sharding."""

import pytest
import torch

from campaigns import nightly_except
from distributed.examples import assert_trains_like_one_process, cluster_engine
from distributed.test_cluster_engine import CRITIC
from engines.examples import engine, weights
from seeupo.algorithms import GRPO, PPO, SeeUPO
from seeupo.distributed.rank_group import RankGroup

pytestmark = pytest.mark.cluster

CASES = {
    "seeupo": (SeeUPO(kl_coef=0.01), {"reference": True}),
    "grpo": (GRPO(), {"reference": True}),
    "ppo": (PPO(), {"critic": CRITIC}),
}


@pytest.fixture(scope="module")
def two_nodes(simulated_nodes):
    with simulated_nodes(2, 2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def four_ranks(two_nodes):
    """Two ranks on each of two nodes."""
    group = RankGroup(4, call_seconds=300)
    yield group
    group.close()


def test_ranks_are_numbered_node_by_node(two_nodes, four_ranks):
    import ray

    def node_id(rank):
        return ray.get_runtime_context().get_node_id()

    nodes = ray.get([actor.__ray_call__.remote(node_id) for actor in four_ranks._actors], timeout=60)
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert set(nodes) == {node.node_id for node in two_nodes}


def stored_share(rank) -> float:
    """Return the share of the weights that a rank stores."""
    parameters = list(rank.engine.policy.model.parameters())
    return sum(parameter.to_local().numel() for parameter in parameters) / sum(
        parameter.numel() for parameter in parameters
    )


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("case", nightly_except(["seeupo", "ppo"], CASES))
def test_ranks_on_two_nodes_train_like_one_process(case, replicas, four_ranks):
    import ray

    algorithm, options = CASES[case]
    cluster = cluster_engine(four_ranks, replicas=replicas, **options)
    assert_trains_like_one_process(algorithm, cluster, tolerance=1e-8, **options)
    stored = ray.get([actor.__ray_call__.remote(stored_share) for actor in four_ranks._actors], timeout=60)
    assert stored == pytest.approx([replicas / 4] * 4, abs=0.05)


def test_checkpoints_of_hybrid_sharding_are_those_of_one_process(four_ranks, tmp_path):
    cluster = cluster_engine(four_ranks, replicas=2)
    assert_trains_like_one_process(GRPO(kl_coef=0.0), cluster, tolerance=1e-8)
    cluster.save(tmp_path)
    saved = weights(cluster)
    local, again = engine(seed=1), cluster_engine(four_ranks, replicas=2, seed=1)
    for side in (local, again):
        side.load(tmp_path)
        torch.testing.assert_close(weights(side), saved, rtol=0, atol=0)
