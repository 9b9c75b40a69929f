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
from seeupo.config.optimizer_settings import CriticSettings, OptimizerSettings
from seeupo.config.schema import AgentSettings, Recipe
from seeupo.distributed.cluster_engine import ClusterEngine
from seeupo.distributed.env_workers import RemoteWorker
from seeupo.distributed.placement import Bundles, reserve_shared
from seeupo.distributed.rank import RankPlan
from seeupo.distributed.rank_group import RankGroup
from seeupo.distributed.ray_cluster import other_nodes, ray_cluster
from seeupo.engines.local import LocalEngine
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.registry import EnvSpec
from seeupo.envs.trust import NOTHING_ALLOWED, Permissions
from seeupo.errors import TrainingError
from seeupo.evaluation.scripted import expert_texts
from seeupo.inference import make_sampler
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.models.lora.turn_adapters import refuse_training
from seeupo.models.precision import DTYPES, resolve_device
from seeupo.models.streaming import WeightStream, can_stream
from seeupo.models.tokenizer_check import check_text
from seeupo.protocols import EnvFactory, Sampler, TrainableEngine
from seeupo.rollout.collector import RewardFunction, load_reward
from seeupo.rollout.runner import Runner, RunnerSettings, make_runner
from seeupo.rollout.template import Template
from seeupo.training.samplers import lora_settings, sampled_copy, start_samplers
from seeupo.types import SamplingParameters, Task

CORPUS_TASKS = 64
"""Number of training tasks whose expert episodes the tokenizer of a `tiny` model is trained on."""


@dataclass(frozen=True)
class ModelInfo:
    """Size and limits of the policy's model."""

    parameters: int
    trained_parameters: int
    vocab_size: int
    context_length: int
    packing: str


@dataclass(frozen=True)
class Components:
    """The components of a run. The loop uses their protocols, never a concrete engine."""

    pool: EnvPool
    engine: TrainableEngine
    sampler: Sampler
    runner: Runner
    model: ModelInfo
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
        device: Device of the model.
        lag: Whether an update and the next sampling run at the same time.
    """

    ranks: int
    samplers: int
    shared: bool
    device: torch.device
    lag: bool

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> Placement:
        return cls(
            ranks=recipe.engine.trainers if recipe.engine.kind == "cluster" else 0,
            samplers=recipe.sampler.count,
            shared=recipe.sampler.placement == "shared" and recipe.sampler.count > 0,
            device=resolve_device(recipe.model.device),
            lag=recipe.collect.lag > 0,
        )

    @property
    def uses_ray(self) -> bool:
        return self.ranks > 0 or self.samplers > 0

    @property
    def loading_device(self) -> str | None:
        """Device that this process loads the policy on; None for the recipe's. Without an engine and a sampler of its
        own, it needs no memory of a GPU.
        """
        return "cpu" if self.ranks and self.samplers else None

    @property
    def sampler_shares_model(self) -> bool:
        """Whether a sampler in this process uses the engine's model: not during an update, which changes it."""
        return not self.ranks and not self.lag

    @property
    def sampler_loads_model(self) -> bool:
        """Whether a sampler in this process needs a model beside the engine's."""
        return not self.ranks and self.lag


@contextmanager
def build(
    recipe: Recipe, environment: EnvFactory | EnvSpec | None = None, permissions: Permissions = NOTHING_ALLOWED
) -> Iterator[Components]:
    """Build a run's components; `environment` replaces the one that the recipe names."""
    placement = Placement.from_recipe(recipe)
    with ExitStack() as stack:
        stack.enter_context(num_threads(recipe.run.threads))
        pool = stack.enter_context(open_pool(recipe, environment, permissions))
        check_step_rewards(recipe, pool)
        reward = load_reward(recipe.collect.reward, permissions.trust)
        train_tasks = pool.first_tasks(recipe.environment.train_split, None)
        test_tasks = pool.first_tasks(recipe.environment.test_split, recipe.evaluation.tasks)
        first = pool.try_task(train_tasks[0])

        load = model_loader(recipe.model, pool, train_tasks, seed=recipe.run.seed)
        policy = load() if placement.loading_device is None else load(device=placement.loading_device)
        prompt = "\n".join(message.content for message in first.messages)
        check_text(policy.tokenizer, prompt, f"the first prompt of {pool.name}")

        if placement.uses_ray:
            start_ray(recipe, placement, pool, stack)
        shared = stack.enter_context(closing(shared_placement(recipe))) if placement.shared else None
        sampler: Sampler | None = None
        if placement.samplers:
            sampler = start_samplers(recipe, policy, load, stack, shared)
            if placement.shared:
                sampler.release()  # it measures its share of the memory before the ranks take theirs
        engine: TrainableEngine
        if placement.ranks:
            engine = stack.enter_context(closing(make_cluster_engine(recipe, load, policy, shared)))
        else:
            engine = make_engine(recipe, policy)
        if sampler is None:
            sampler = sampler_in_process(recipe, placement, policy, load)

        template, settings = template_of(recipe.agent), runner_settings(recipe)
        runner = make_runner(policy, pool, template, settings, training=True, sampler=sampler)
        runner.sampler.sync(engine, 0)
        yield Components(pool, engine, runner.sampler, runner, model_info(policy), train_tasks, test_tasks, reward)


def start_ray(recipe: Recipe, placement: Placement, pool: EnvPool, stack: ExitStack) -> None:
    """Start or join a Ray cluster for the run, and use the environment workers of its other nodes."""
    processes = recipe.engine.trainers + placement.samplers
    own_device = None if placement.ranks else placement.device
    stack.enter_context(ray_cluster(recipe.engine.address, processes=processes, own_device=own_device))
    stack.callback(pool.close)  # before Ray ends
    pool.spread({node: partial(RemoteWorker, node=node) for node in other_nodes()})


def sampler_in_process(
    recipe: Recipe, placement: Placement, policy: LoadedPolicy, load: partial[LoadedPolicy]
) -> Sampler:
    """Return the sampler of this process."""
    model = policy
    if not placement.sampler_shares_model:
        model = sampled_copy(load() if placement.sampler_loads_model else policy, lora_settings(recipe))
    return make_sampler(model, max_rows=recipe.agent.concurrency, speculation=recipe.sampler.speculation)


def check_step_rewards(recipe: Recipe, pool: EnvPool) -> None:
    """Refuse to add step rewards to a score that may already contain them."""
    if recipe.collect.reward == "score_and_steps" and not pool.separate_step_rewards():
        raise TrainingError(
            f'collect.reward = "score_and_steps": {pool.name} declares no step rewards beside its score; expected an '
            'environment with separate_step_rewards. Use "score", or an option that adds them (pocket: lookup_reward; '
            'bfcl: turn_reward; gymnasium, gem: rewards = "terminal").'
        )


@contextmanager
def num_threads(count: int | None) -> Iterator[None]:
    """Use `count` PyTorch threads inside the context; None leaves the number as it is."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_engine(recipe: Recipe, policy: LoadedPolicy) -> LocalEngine:
    """Return the engine that trains the policy in this process."""
    try:
        return LocalEngine(policy, optimizer_settings(recipe), **engine_options(recipe))
    except ValueError as error:
        raise TrainingError(f"{recipe.model.name} cannot be trained with these settings: {error}") from None


def shared_placement(recipe: Recipe) -> Bundles:
    """Reserve the resources that trainers and samplers share."""
    return reserve_shared(
        recipe.engine.trainers,
        recipe.sampler.count,
        tensor_parallel=recipe.sampler.tensor_parallel,
        on_gpu=resolve_device(recipe.model.device).type == "cuda",
    )


def make_cluster_engine(
    recipe: Recipe, load: Callable[[], LoadedPolicy], policy: LoadedPolicy, shared: Bundles | None = None
) -> ClusterEngine:
    """Return the engine that trains in Ray actors, each of which loads the policy itself."""
    settings, on_gpu = recipe.engine, resolve_device(recipe.model.device).type == "cuda"
    plan = RankPlan(
        load=load,
        optimizer=optimizer_settings(recipe),
        options=engine_options(recipe),
        replicas=settings.replicas,
        cpu_offload=settings.cpu_offload,
        threads=max(1, (recipe.run.threads or torch.get_num_threads()) // settings.trainers),
        stream=weight_stream(recipe, policy),
    )
    start = partial(RankGroup, settings.trainers, gpus=int(on_gpu), call_seconds=settings.call_seconds, shared=shared)
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
    return {
        "lora": lora_settings(recipe),
        "critic": critic_settings(recipe),
        "temperature": recipe.agent.temperature,
        "reference": "reference" in recipe.algorithm.needs,
        "reference_dtype": None if recipe.model.reference_dtype is None else DTYPES[recipe.model.reference_dtype],
        "batch_tokens": recipe.model.batch_tokens,
        "row_tokens": recipe.model.row_tokens,
        "gradient_checkpointing": recipe.model.gradient_checkpointing,
        "trunk_bytes": int(recipe.model.trunk_gib * 2**30),
    }


def critic_settings(recipe: Recipe) -> CriticSettings | None:
    """Return the critic's settings if the algorithm needs a critic."""
    if "critic" not in recipe.algorithm.needs:
        return None
    return replace(recipe.critic, optimizer=replace(recipe.critic.optimizer, iterations=recipe.run.total_iterations))


def open_pool(
    recipe: Recipe, environment: EnvFactory | EnvSpec | None = None, permissions: Permissions = NOTHING_ALLOWED
) -> EnvPool:
    """Start the environment of a recipe, or a custom one. The arguments of a factory object are its own."""
    settings = recipe.environment
    if environment is not None and not isinstance(environment, EnvSpec):
        return EnvPool(environment, workers=settings.workers)
    return EnvPool(
        environment or settings.name,
        options=settings.options,
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
        has_texts = settings.tiny.vocabulary and not words
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


def model_info(policy: LoadedPolicy) -> ModelInfo:
    """Return size and limits of a loaded model."""
    parameters = list(policy.model.parameters())
    return ModelInfo(
        parameters=sum(parameter.numel() for parameter in parameters),
        trained_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        vocab_size=int(policy.model.config.get_text_config().vocab_size),
        context_length=policy.context_length,
        packing=policy.packing,
    )


def template_of(agent: AgentSettings) -> Template:
    """Return the prompt template of an agent."""
    return Template(
        reasoning=agent.reasoning,
        max_observation_tokens=agent.max_observation_tokens,
        max_prompt_tokens=agent.max_prompt_tokens,
    )


def runner_settings(recipe: Recipe) -> RunnerSettings:
    """Return the settings of a run's episode runner."""
    agent = recipe.agent
    return RunnerSettings(
        parameters=SamplingParameters(max_tokens=agent.max_tokens, temperature=agent.temperature),
        max_turns=agent.max_turns,
        concurrency=agent.concurrency,
        episode_seconds=agent.episode_seconds,
        deterministic=recipe.run.deterministic,
    )
