from dataclasses import replace

import pytest

from seeupo.algorithms import GRPO, PPO, SeeUPO
from seeupo.algorithms.common.trust_region import TrustRegionSettings
from seeupo.config.model_settings import LoraSettings, ModelSettings
from seeupo.config.process_settings import EngineSettings, SamplerSettings
from seeupo.config.schema import AgentSettings, CollectSettings, Recipe
from seeupo.planning.memory import GIB, training_memory
from seeupo.planning.plan import Limits, gpus_of, make_plan
from seeupo.planning.shapes import shape_of
from seeupo.planning.timing import GPU, iteration_time, iteration_tokens

LARGE = Recipe(
    model=ModelSettings(name="Qwen/Qwen3-14B", dtype="bfloat16", gradient_checkpointing=True),
    agent=AgentSettings(max_prompt_tokens=14000, max_tokens=4000, concurrency=64),
    collect=CollectSettings(tasks=2, group_size=4),
)
ADAPTERS = replace(LARGE, model=replace(LARGE.model, lora=LoraSettings()), agent=replace(LARGE.agent, concurrency=4))
EIGHT = replace(
    LARGE,
    engine=EngineSettings(kind="cluster", trainers=8),
    sampler=SamplerSettings(kind="vllm", count=4, tensor_parallel=2, placement="shared", gpu_memory=0.5),
)


@pytest.fixture(scope="module")
def shape():
    return shape_of(LARGE.model)


def part(memory, name):
    return next((part.size for part in memory.parts if part.name == name), 0)


def test_ranks_share_weights_gradients_and_optimizer(shape):
    one, eight = training_memory(shape, LARGE), training_memory(shape, EIGHT)
    for name in ("weights", "gradients", "optimizer"):
        assert part(eight, name) == part(one, name) / 8
    assert part(one, "optimizer") == 8 * shape.parameters
    replicated = replace(EIGHT, engine=replace(EIGHT.engine, replicas=2))
    assert part(training_memory(shape, replicated), "weights") == part(one, "weights") / 4


def test_offloaded_state_is_not_counted_on_the_gpu(shape):
    offloaded = training_memory(shape, replace(EIGHT, engine=replace(EIGHT.engine, cpu_offload=True)))
    assert offloaded.resident == 0
    assert offloaded.on_cpu == pytest.approx(16 * shape.parameters / 8)
    assert offloaded.peak < training_memory(shape, EIGHT).peak


def test_reference_policy_critic_and_moments_per_agent_are_counted(shape):
    plain = training_memory(shape, EIGHT)
    with_reference = training_memory(shape, replace(EIGHT, algorithm=SeeUPO(kl_coef=0.1)))
    assert part(with_reference, "reference policy") == part(plain, "weights")
    assert part(training_memory(shape, replace(EIGHT, algorithm=PPO())), "critic") > part(plain, "weights")
    per_agent = replace(EIGHT, optimizer=replace(EIGHT.optimizer, moments="per_agent"))
    assert part(training_memory(shape, per_agent), "optimizer") == 10 * part(plain, "optimizer")
    of_four_turns = replace(per_agent, algorithm=SeeUPO(turns_per_agent=4))
    assert part(training_memory(shape, of_four_turns), "optimizer") == 3 * part(plain, "optimizer")
    guarded = training_memory(shape, replace(EIGHT, algorithm=SeeUPO(trust_region=TrustRegionSettings())))
    assert part(guarded, "weights before a step") == part(plain, "optimizer") / 2


def test_a_recipe_that_fits_has_no_problems(shape):
    plan = make_plan(shape, EIGHT, Limits(8, 80 * GIB))
    assert (plan.gpus, plan.problems, plan.changes) == (8, (), ())
    assert plan.sampler.rows > 1


def test_changes_are_suggested_in_order_with_their_result(shape):
    recipe = replace(LARGE, model=replace(LARGE.model, gradient_checkpointing=False))
    plan = make_plan(shape, recipe, Limits(None, 80 * GIB))
    assert any("an update needs" in problem for problem in plan.problems)
    options = [change.partition(":")[0] for change in plan.changes]
    assert options[0] == "--model.lora.rank 16"
    assert options[1:3] == ["--engine.kind cluster --engine.cpu_offload true", "--model.gradient_checkpointing true"]
    assert options[3].startswith("--engine.kind cluster --engine.trainers ")
    assert options[4] == "--agent.max_prompt_tokens 7000"
    assert options[5] == "all of them together"


def test_a_long_micro_batch_is_shortened_to_a_turn(shape):
    recipe = replace(LARGE, model=replace(LARGE.model, batch_tokens=60000))
    plan = make_plan(shape, recipe, Limits(None, 80 * GIB))
    assert any(change.startswith("--model.batch_tokens 18000") for change in plan.changes)


def test_too_few_gpus_are_a_problem(shape):
    assert "it asks for 8 GPUs; there are 4" in make_plan(shape, EIGHT, Limits(4, 80 * GIB)).problems
    apart = replace(EIGHT, sampler=replace(EIGHT.sampler, placement="apart"))
    assert gpus_of(apart) == 16


def test_a_sampler_that_shares_its_gpus_leaves_room_for_the_trainer(shape):
    greedy = replace(EIGHT, sampler=replace(EIGHT.sampler, gpu_memory=0.9))
    assert any("lower it to" in problem for problem in make_plan(shape, greedy, Limits(8, 80 * GIB)).problems)
    tiny = replace(EIGHT, sampler=replace(EIGHT.sampler, gpu_memory=0.1))
    assert any("sampler.tensor_parallel" in problem for problem in make_plan(shape, tiny, Limits(8, 80 * GIB)).problems)


def test_the_local_samplers_snapshot_of_the_weights_is_counted(shape):
    small, exact = shape_of(ModelSettings()), replace(LARGE, model=replace(LARGE.model, dtype="float32"))
    for own, recipe, expected in (
        (small, Recipe(), 4 * small.parameters),
        (small, replace(Recipe(), sampler=SamplerSettings(count=2)), 8 * small.parameters),
        (small, LARGE, 0),  # bfloat16
        (shape, exact, 0),  # above 4 GiB
    ):
        assert make_plan(own, recipe, Limits(0, 80 * GIB)).sampler.weights == expected


@pytest.mark.parametrize("kind", ["local", "vllm"])
def test_one_adapter_per_turn_is_counted_in_training_and_in_samplers(kind):
    small, lora = shape_of(ModelSettings()), LoraSettings(rank=4)
    plans = {}
    for count in (1, 3):
        model = ModelSettings(lora=replace(lora, per_turn=count))
        recipe = replace(Recipe(), model=model, sampler=SamplerSettings(kind=kind, count=1))
        plans[count] = make_plan(small, recipe, Limits(1, 80 * GIB))
    adapter = sum(small.adapter_sizes(lora))
    copies = {"local": 2, "vllm": 1}[kind]  # a local sampler has a snapshot beside the weights
    assert plans[3].sampler.weights == plans[1].sampler.weights + 2 * copies * 4 * adapter
    assert plans[3].training.resident >= plans[1].training.resident + 2 * (4 + 8) * adapter  # with moments
    if kind == "local":
        assert plans[3].sampler.cache == plans[1].sampler.cache  # one batch for all turns


def test_tokens_of_an_iteration_worked_out_by_hand(shape):
    agent = AgentSettings(max_prompt_tokens=100, max_tokens=10, max_turns=2)
    recipe = replace(LARGE, agent=agent)
    tokens = iteration_tokens(shape, recipe)
    # 8 trajectories of 2 turns: prompts of 50 and 100 tokens; the first 50 are common to each of the 2 groups.
    assert tokens.sampled == 8 * 2 * 10
    assert tokens.once == 2 * 50 + 8 * (50 + 2 * 10)
    assert tokens.by_turn == (2 * 50 + 8 * 10) + (2 * 50 + 8 * 50 + 8 * 10)
    together = iteration_tokens(shape, replace(recipe, algorithm=SeeUPO(turns_per_agent=2)))
    assert together.by_turn == tokens.once


def test_time_scales_with_devices_and_passes(shape):
    one, eight = (iteration_time(shape, recipe, GPU, rows=8) for recipe in (LARGE, EIGHT))
    assert eight.update == pytest.approx(one.update / 8)
    grpo = iteration_time(shape, replace(LARGE, algorithm=GRPO()), GPU, rows=8)
    assert grpo.update < one.update
    with_reference = iteration_time(shape, replace(LARGE, algorithm=SeeUPO(kl_coef=0.1)), GPU, rows=8)
    assert with_reference.update > one.update
    guarded = replace(LARGE, algorithm=SeeUPO(trust_region=TrustRegionSettings()))
    assert iteration_time(shape, guarded, GPU, rows=8).update > one.update
    together = replace(LARGE, algorithm=SeeUPO(turns_per_agent=LARGE.agent.max_turns))
    assert iteration_time(shape, together, GPU, rows=8).update < one.update


def test_gpus_that_a_recipe_leaves_unused_come_with_the_overrides_that_use_them(shape):
    options, wider = make_plan(shape, ADAPTERS, Limits(2, 80 * GIB)).spread
    assert options == "--engine.kind cluster --engine.trainers 2 --sampler.count 2 --sampler.placement shared"
    assert wider.gpus == 2
    alone = make_plan(shape, ADAPTERS, Limits(1, 80 * GIB))
    assert wider.time.update == pytest.approx(alone.time.update / 2)
    assert wider.time.sample < alone.time.sample
    for few in (None, 0, 1):
        assert make_plan(shape, ADAPTERS, Limits(few, 80 * GIB)).spread is None


def test_samplers_get_gpus_of_their_own_if_they_work_during_updates(shape):
    ahead = replace(ADAPTERS, collect=replace(LARGE.collect, lag=1))
    options, wider = make_plan(shape, ahead, Limits(4, 80 * GIB)).spread
    assert options == "--engine.kind cluster --engine.trainers 2 --sampler.count 2"
    assert wider.gpus == 4
