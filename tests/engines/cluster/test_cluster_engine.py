from dataclasses import replace

import pytest
import torch

from engines.cluster.examples import cluster_engine
from engines.examples import engine, trajectories, weights
from seeupo.algorithms import GRPO, PPO, SeeUPO
from seeupo.engines.local_critic import CriticSettings
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.models.adapters import LoraSettings

pytestmark = pytest.mark.cluster

CRITIC = CriticSettings(optimizer=OptimizerSettings(learning_rate=1e-2))
CASES = {
    "seeupo": (SeeUPO(kl_coef=0.01, entropy_coef=0.01), {"reference": True}),
    "seeupo-lora": (SeeUPO(kl_coef=0.01), {"reference": True, "lora": LoraSettings(rank=2)}),
    "seeupo-checkpointing": (SeeUPO(), {"gradient_checkpointing": True}),
    "seeupo-padded": (SeeUPO(), {"packing": "padded"}),
    "grpo": (GRPO(kl_coef=0.01), {"reference": True}),
    "ppo": (PPO(), {"critic": CRITIC}),
    "ppo-head": (PPO(), {"critic": replace(CRITIC, backbone="policy")}),
}


def unequal_trajectories(seed: int):
    """Trajectories of different lengths; the last turns have too few turns for every rank to have one."""
    made = trajectories(4, seed=seed)
    return [replace(each, turns=each.turns[: 4 if index == 0 else 1 + index % 3]) for index, each in enumerate(made)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_two_ranks_train_like_one_process(case, dtype, two_ranks):
    algorithm, options = CASES[case]
    tolerance = 1e-8 if dtype == torch.float64 else 1e-3
    local, cluster = engine(dtype=dtype, **options), cluster_engine(two_ranks, dtype=dtype, **options)
    start = weights(local)
    torch.testing.assert_close(weights(cluster), start, rtol=0, atol=0)
    for iteration in range(2):
        batch = unequal_trajectories(iteration)
        updates = []
        for each in (local, cluster):
            each.begin_iteration(iteration)
            generator = torch.Generator().manual_seed(iteration)
            updates.append(algorithm.update(each, batch, generator=generator))
        for one, two in zip(updates[0].metrics, updates[1].metrics, strict=True):
            assert two.agent == one.agent
            assert dict(two.values) == pytest.approx(dict(one.values), rel=100 * tolerance, abs=100 * tolerance)
    moved, moved_cluster = weights(local) - start, weights(cluster) - start
    assert float(moved.norm()) > 0.01
    assert float((moved_cluster - moved).norm() / moved.norm()) < tolerance
