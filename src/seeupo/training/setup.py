"""Build the components of a run from its recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from seeupo.agents.template import Template
from seeupo.config.schema import AgentSettings, ModelSettings, Recipe
from seeupo.engines.local import LocalEngine
from seeupo.engines.local_critic import CriticSettings
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.trust import NOTHING_ALLOWED, Permissions
from seeupo.errors import TrainingError
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.models.tiny import TinyConfig
from seeupo.rollout.runner import Runner, RunnerSettings, make_runner
from seeupo.types import EnvFactory, Sampler, SamplingParameters, Task, TrainableEngine


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


@contextmanager
def build(
    recipe: Recipe, environment: EnvFactory | None = None, permissions: Permissions = NOTHING_ALLOWED
) -> Iterator[Components]:
    """Build a run's components; `environment` replaces the one that the recipe names."""
    with num_threads(recipe.run.threads), open_pool(recipe, environment, permissions) as pool:
        train_tasks = pool.first_tasks(recipe.environment.train_split, None)
        test_tasks = pool.first_tasks(recipe.environment.test_split, recipe.evaluation.tasks)
        policy = load_model(recipe.model, pool, seed=recipe.run.seed)
        engine = make_engine(recipe, policy)
        runner = make_runner(policy, pool, template_of(recipe.agent), runner_settings(recipe), training=True)
        yield Components(pool, engine, runner.sampler, runner, model_info(policy), train_tasks, test_tasks)


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
    """Return the engine that trains the policy."""
    try:
        return LocalEngine(
            policy,
            replace(recipe.optimizer, iterations=recipe.run.total_iterations),
            lora=recipe.model.lora,
            critic=critic_settings(recipe),
            temperature=recipe.agent.temperature,
            reference="reference" in recipe.algorithm.needs,
            batch_tokens=recipe.model.batch_tokens,
            row_tokens=recipe.model.row_tokens,
            gradient_checkpointing=recipe.model.gradient_checkpointing,
        )
    except ValueError as error:
        raise TrainingError(f"{recipe.model.name} cannot be trained with these settings: {error}") from None


def critic_settings(recipe: Recipe) -> CriticSettings | None:
    """Return the critic's settings if the algorithm needs a critic."""
    if "critic" not in recipe.algorithm.needs:
        return None
    return replace(recipe.critic, optimizer=replace(recipe.critic.optimizer, iterations=recipe.run.total_iterations))


def open_pool(
    recipe: Recipe, environment: EnvFactory | None = None, permissions: Permissions = NOTHING_ALLOWED
) -> EnvPool:
    """Start the environment of a recipe, or a custom one."""
    settings = recipe.environment
    if environment is not None:
        return EnvPool(environment, workers=settings.workers)
    return EnvPool(
        settings.name,
        options=settings.options,
        workers=settings.workers,
        trust=permissions.trust,
        unsandboxed=permissions.unsandboxed,
    )


def load_model(settings: ModelSettings, pool: EnvPool, *, seed: int) -> LoadedPolicy:
    """Load the model that a run starts from."""
    if settings.name != "tiny":
        merge = settings.lora is None  # otherwise the adapter itself is trained further
        return load_policy(settings.name, device=settings.device, dtype=settings.dtype, merge=merge)
    tiny = settings.tiny
    config = TinyConfig(
        width=tiny.width,
        layers=tiny.layers,
        heads=tiny.heads,
        context=tiny.context,
        words=pool.vocabulary() if tiny.words else (),
        seed=seed,
    )
    return load_policy("tiny", device=settings.device, dtype=settings.dtype, tiny=config)


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
