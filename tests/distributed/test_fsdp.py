import pytest
import torch
import torch.distributed as dist

from engines.examples import TOKENIZER, engine, objective_for, trajectories, weights
from models.examples import small_model
from seeupo.config.optimizer_settings import CriticSettings, OptimizerSettings
from seeupo.distributed.rank import Rank, RankPlan
from seeupo.models.loading import LoadedPolicy
from seeupo.types import turns_of


@pytest.fixture
def only_rank():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_layers_are_gathered_in_the_type_of_the_computation(only_rank):
    policy = LoadedPolicy(small_model(dtype=torch.float32), TOKENIZER, "tree", compute_dtype=torch.bfloat16)
    plan = RankPlan(
        load=lambda: policy,
        optimizer=OptimizerSettings(),
        options={"critic": CriticSettings()},
        replicas=1,
        cpu_offload=False,
        threads=torch.get_num_threads(),
    )
    rank, seen = Rank(0, 1), {}
    rank.build(plan)
    critic = rank.engine._critic.critic
    linear = {
        "layer": policy.model.base_model.layers[0].mlp.gate_proj,
        "output": policy.model.lm_head,
        "critic": critic.backbone.layers[0].mlp.gate_proj,
    }
    for name, module in linear.items():
        module.register_forward_hook(lambda module, *_, name=name: seen.update({name: module.weight.dtype}))
    critic.head.register_forward_hook(lambda *arguments: seen.update(value=arguments[-1].dtype))
    turns = turns_of(trajectories())
    rank.engine.step(turns, objective_for(rank.engine, turns), normalizer=20)
    rank.engine.turn_values(turns)
    assert seen == {**dict.fromkeys(linear, torch.bfloat16), "value": torch.float32}
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.float32}


def test_one_rank_and_the_local_engine_load_each_others_checkpoints(only_rank, tmp_path):
    plan = RankPlan(
        load=lambda: LoadedPolicy(small_model(dtype=torch.float64), TOKENIZER, "tree"),
        optimizer=OptimizerSettings(learning_rate=1e-2),
        options={"reference": True},
        replicas=1,
        cpu_offload=False,
        threads=torch.get_num_threads(),
    )
    rank = Rank(0, 1)
    rank.build(plan)
    turns = turns_of(trajectories())
    rank.engine.step(turns, objective_for(rank.engine, turns), normalizer=20)
    rank.run("save", tmp_path / "ranks")
    local = engine(reference=True, seed=1)
    local.load(tmp_path / "ranks")
    torch.testing.assert_close(weights(local), weights(rank.engine), rtol=0, atol=0)
    (tmp_path / "local").mkdir()
    local.save(tmp_path / "local")
    rank.engine.step(turns, objective_for(rank.engine, turns), normalizer=20)
    rank.run("load", tmp_path / "local")
    torch.testing.assert_close(weights(rank.engine), weights(local), rtol=0, atol=0)
    for side in (local, rank.engine):  # the moments are the same, too
        side.step(turns, objective_for(side, turns), normalizer=20)
    torch.testing.assert_close(weights(rank.engine), weights(local), rtol=0, atol=1e-10)
