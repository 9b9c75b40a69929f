"""Build the components of a run from its recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seeupo.config.model_settings import ModelSettings
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.config.schema import Recipe
from seeupo.distributed.cluster_engine import ClusterEngine
from seeupo.distributed.env_workers import RemoteWorker
from seeupo.distributed.placement import Bundles, reserve_shared
from seeupo.distributed.rank import RankPlan
from seeupo.distributed.rank_group import RankGroup
from seeupo.distributed.ray_cluster import other_nodes, ray_cluster
from seeupo.engines.local import LocalEngine
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.registry import EnvSpec
from seeupo.envs.trust import NOTHING_ALLOWED, Permissions, check_trust
from seeupo.errors import TrainingError
from seeupo.evaluation.scripted import expert_texts
from seeupo.inference import make_sampler
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.models.lora.turn_adapters import refuse_training
from seeupo.models.precision import DTYPES, resolve_device
from seeupo.models.streaming import WeightStream, can_stream
from seeupo.models.threads import default_threads, num_threads
from seeupo.models.tokenizer_check import check_text
from seeupo.protocols import EnvFactory, Rollouts, Sampler, TrainableEngine
from seeupo.rollout.collector import RewardFunction, load_reward
from seeupo.rollout.gateway import load_program, open_rollouts
from seeupo.rollout.reward_check import EmptyResponses, check_reward
from seeupo.rollout.runner import Runner
from seeupo.training.samplers import lora_settings, sampled_copy, start_samplers
from seeupo.types import SamplingParameters, StepResult, Task

CORPUS_TASKS = 64
"""Number of training tasks whose expert episodes the tokenizer of a `tiny` model is trained on."""


@dataclass(frozen=True)
class Components:
    """The components of a run. The loop uses their protocols, never a concrete engine.

    Attributes:
        recipe: The recipe with a definite number of iterations and of threads.
        runner: Runs episodes in the environment.
        rollouts: Runs the attempts of training and evaluation: the runner, or the gateway of an agent program.
        vocab_size: Size of the model's vocabulary.
    """

    recipe: Recipe
    pool: EnvPool
    engine: TrainableEngine
    sampler: Sampler
    runner: Runner
    rollouts: Rollouts
    vocab_size: int
    train_tasks: Sequence[Task]
    test_tasks: Sequence[Task]
    reward: RewardFunction | None = None


@dataclass(frozen=True)
class Placement:
    """Where the parts of a run are: in this process, or in Ray actors.

    Attributes:
        ranks: Number of Ray actors that train; 0 if the engine is in this process.
        samplers: Number of Ray actors that sample; 0 if the sampler is in this process.
        shared: Whether ranks and sampler processes share their GPUs.
        on_gpu: Whether the model is on GPUs.
    """

    ranks: int
    samplers: int
    shared: bool
    on_gpu: bool

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> Placement:
        return cls(
            ranks=recipe.engine.trainers if recipe.engine.kind == "cluster" else 0,
            samplers=recipe.sampler.count,
            shared=recipe.sampler.placement == "shared" and recipe.sampler.count > 0,
            on_gpu=resolve_device(recipe.model.device).type == "cuda",
        )


@contextmanager
def build(
    recipe: Recipe, environment: EnvFactory | EnvSpec | None = None, permissions: Permissions = NOTHING_ALLOWED
) -> Iterator[Components]:
    """Build a run's components; `environment` replaces the one that the recipe names."""
    check_trust(recipe.clusters, permissions.trust)
    placement = Placement.from_recipe(recipe)
    with ExitStack() as stack:
        stack.enter_context(num_threads(recipe.run.threads))
        reward = load_reward(recipe.collect.reward, permissions.trust)
        pool = stack.enter_context(open_pool(recipe, environment, permissions))
        check_step_rewards(recipe, pool)
        train_tasks = pool.first_tasks(recipe.environment.train_split, None)
        test_tasks = pool.first_tasks(recipe.environment.test_split, recipe.evaluation.tasks)
        program = load_program(recipe.agent.program, permissions.trust)
        first = pool.try_task(train_tasks[0]) if program is None else None
        recipe = replace(recipe, run=recipe.run.resolved(len(train_tasks), recipe.collect.tasks))

        load = model_loader(recipe.model, pool, train_tasks, seed=recipe.run.seed)
        # Without an engine and a sampler of its own, this process needs no memory of a GPU.
        policy = load(device="cpu") if placement.ranks and placement.samplers else load()
        threads = recipe.run.threads or default_threads(policy.model)
        recipe = replace(recipe, run=replace(recipe.run, threads=threads))
        stack.enter_context(num_threads(threads))
        if first is not None:
            check_episode(recipe, policy, pool, first, reward)

        if placement.ranks or placement.samplers:
            start_ray(recipe, placement, pool, stack)
        shared: Bundles | None = None
        if placement.shared:
            tensor_parallel = recipe.sampler.tensor_parallel
            bundles = reserve_shared(
                placement.ranks, placement.samplers, tensor_parallel=tensor_parallel, on_gpu=placement.on_gpu
            )
            shared = stack.enter_context(closing(bundles))
        sampler: Sampler | None = None
        if placement.samplers:
            sampler = start_samplers(recipe, policy, load, stack, shared)
            if placement.shared:
                sampler.release()  # it measures its share of the memory before the ranks take theirs
        engine: TrainableEngine
        if placement.ranks:
            engine = stack.enter_context(closing(make_cluster_engine(recipe, placement, load, policy, shared)))
        else:
            engine = make_engine(recipe, policy)
        if sampler is None:
            sampler = sampler_in_process(recipe, placement, policy, load)
        sampler.sync(engine, 0)
        runner = make_runner(recipe, policy, pool, sampler)
        rollouts = stack.enter_context(open_rollouts(runner, program))
        vocab_size = int(policy.model.config.get_text_config().vocab_size)
        yield Components(recipe, pool, engine, sampler, runner, rollouts, vocab_size, train_tasks, test_tasks, reward)


def check_episode(
    recipe: Recipe, policy: LoadedPolicy, pool: EnvPool, first: StepResult, reward: RewardFunction | None
) -> None:
    """Check the tokens of the first prompt, and the reward of an episode."""
    prompt = "\n".join(message.content for message in first.messages)
    check_text(policy.tokenizer, prompt, f"the first prompt of {pool.name}")
    if reward is not None:
        empty = EmptyResponses(policy.tokenizer.eos_token_id)
        task = pool.first_tasks(recipe.environment.train_split, 1)[0]
        check_reward(reward, recipe.collect, make_runner(recipe, policy, pool, empty), task)


def start_ray(recipe: Recipe, placement: Placement, pool: EnvPool, stack: ExitStack) -> None:
    """Start or join a Ray cluster for the run, and use the environment workers of its other nodes."""
    processes = recipe.engine.trainers + placement.samplers
    own_device = None if placement.ranks else resolve_device(recipe.model.device)
    stack.enter_context(ray_cluster(recipe.engine.address, processes=processes, own_device=own_device))
    stack.callback(pool.close)  # before Ray ends
    pool.spread({node: partial(RemoteWorker, node=node) for node in other_nodes()})


def sampler_in_process(
    recipe: Recipe, placement: Placement, policy: LoadedPolicy, load: partial[LoadedPolicy]
) -> Sampler:
    """Return the sampler of this process. It shares the engine's model unless an update and sampling may overlap."""
    model = policy
    if placement.ranks:
        model = sampled_copy(policy, lora_settings(recipe))
    elif recipe.collect.lag:
        model = sampled_copy(load(), lora_settings(recipe))
    return make_sampler(model, max_rows=recipe.agent.concurrency, speculation=recipe.sampler.speculation)


def check_step_rewards(recipe: Recipe, pool: EnvPool) -> None:
    """Refuse to add step rewards to a score that may already contain them."""
    declared = recipe.agent.program is not None or pool.separate_step_rewards()
    if recipe.collect.reward == "score_and_steps" and not declared:
        raise TrainingError(
            f'collect.reward = "score_and_steps": {pool.name} declares no step rewards beside its score; expected an '
            'environment with separate_step_rewards. Use "score", or an option that adds them (pocket: lookup_reward; '
            'bfcl: turn_reward; gymnasium, gem: rewards = "terminal").'
        )


def make_engine(recipe: Recipe, policy: LoadedPolicy) -> LocalEngine:
    """Return the engine that trains the policy in this process."""
    try:
        return LocalEngine(policy, optimizer_settings(recipe), **engine_options(recipe))
    except ValueError as error:
        raise TrainingError(f"{recipe.model.name} cannot be trained with these settings: {error}") from None


def make_cluster_engine(
    recipe: Recipe,
    placement: Placement,
    load: Callable[[], LoadedPolicy],
    policy: LoadedPolicy,
    shared: Bundles | None,
) -> ClusterEngine:
    """Return the engine that trains in Ray actors, each of which loads the policy itself."""
    settings = recipe.engine
    plan = RankPlan(
        load=load,
        optimizer=optimizer_settings(recipe),
        options=engine_options(recipe),
        replicas=settings.replicas,
        cpu_offload=settings.cpu_offload,
        threads=max(1, (recipe.run.threads or torch.get_num_threads()) // settings.trainers),
        stream=weight_stream(recipe, policy),
    )
    start = partial(
        RankGroup, settings.trainers, gpus=int(placement.on_gpu), call_seconds=settings.call_seconds, shared=shared
    )
    return ClusterEngine(plan, start, packing=policy.packing, restarts=settings.restarts)


def weight_stream(recipe: Recipe, policy: LoadedPolicy) -> WeightStream | None:
    """Return how ranks read the policy weight by weight; None if they have to load it as a whole."""
    model = recipe.model
    # Parts in the memory of the CPU are made from whole weights there.
    if recipe.engine.cpu_offload or not can_stream(model.name, policy.model):
        return None
    return WeightStream(model.name, model.device, model.dtype, model.lora is not None, policy.packing)


def optimizer_settings(recipe: Recipe) -> OptimizerSettings:
    """Return the optimizer's settings with the length of the run."""
    return replace(recipe.optimizer, iterations=recipe.run.total_iterations)


def engine_options(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments of `LocalEngine` besides the policy and the optimizer."""
    critic_optimizer = replace(recipe.critic.optimizer, iterations=recipe.run.total_iterations)
    return {
        "lora": lora_settings(recipe),
        "critic": replace(recipe.critic, optimizer=critic_optimizer) if "critic" in recipe.algorithm.needs else None,
        "temperature": recipe.agent.temperature,
        "reference": "reference" in recipe.algorithm.needs,
        "reference_dtype": None if recipe.model.reference_dtype is None else DTYPES[recipe.model.reference_dtype],
        "batch_tokens": recipe.model.batch_tokens,
        "row_tokens": recipe.model.row_tokens,
        "gradient_checkpointing": recipe.model.gradient_checkpointing,
        "trunk_bytes": int(recipe.model.trunk_gib * 2**30),
    }


def open_pool(
    recipe: Recipe, environment: EnvFactory | EnvSpec | None = None, permissions: Permissions = NOTHING_ALLOWED
) -> EnvPool:
    """Start the environment of a recipe, or a custom one. The arguments of a factory object are its own."""
    settings = recipe.environment
    is_named = environment is None or isinstance(environment, EnvSpec)
    return EnvPool(
        environment or settings.name,
        options=settings.options if is_named else {},
        workers=settings.workers,
        trust=permissions.trust,
        unsandboxed=permissions.unsandboxed,
    )


def model_loader(
    settings: ModelSettings, pool: EnvPool, train_tasks: Sequence[Task], *, seed: int
) -> partial[LoadedPolicy]:
    """Return a function that loads the model that a run starts from, in this process or another one."""
    refuse_training(Path(settings.name))
    config = None
    if settings.name == "tiny":
        words = pool.vocabulary() if settings.tiny.words else ()
        has_texts = settings.tiny.vocabulary and not words and pool.name != "tasks"
        corpus = expert_texts(pool, train_tasks[:CORPUS_TASKS]) if has_texts else ()
        config = settings.tiny.config(words=words, corpus=corpus, seed=seed)
    return partial(
        load_policy,
        settings.name,
        device=settings.device,
        dtype=settings.dtype,
        frozen=settings.lora is not None,
        tiny=config,
        merge=settings.lora is None,  # without adapters to train, those of an adapter folder are merged
    )


def make_runner(recipe: Recipe, policy: LoadedPolicy, pool: EnvPool, sampler: Sampler) -> Runner:
    """Return the episode runner of a run."""
    agent = recipe.agent
    return Runner(
        policy,
        pool,
        sampler,
        parameters=SamplingParameters(max_tokens=agent.max_tokens, temperature=agent.temperature),
        max_turns=agent.max_turns,
        concurrency=agent.concurrency,
        episode_seconds=agent.episode_seconds,
        reasoning=agent.reasoning,
        max_observation_tokens=agent.max_observation_tokens,
        max_prompt_tokens=agent.max_prompt_tokens,
        deterministic=recipe.run.deterministic,
    )
