"""What a run is put together from, as its recipe says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from seeupo.agents.chat import chat_format
from seeupo.agents.runner import Runner, RunnerSettings
from seeupo.agents.template import Template
from seeupo.engines.local import LocalEngine
from seeupo.engines.local_critic import CriticSettings
from seeupo.engines.plain_sampler import local_sampler
from seeupo.envs.pool import EnvPool
from seeupo.models.loading import LoadedPolicy, load_policy
from seeupo.models.tiny import TinyConfig
from seeupo.training.failures import TrainingError
from seeupo.training.players import tasks_of
from seeupo.training.recipe import AgentSettings, ModelSettings, Recipe
from seeupo.types import EnvFactory, Sampler, SamplingParameters, Task


@dataclass(frozen=True)
class Parts:
    """The parts of a run, all in this process but for the environment's workers."""

    pool: EnvPool
    policy: LoadedPolicy
    engine: LocalEngine
    sampler: Sampler
    runner: Runner
    train_tasks: Sequence[Task]
    test_tasks: Sequence[Task]


@contextmanager
def assemble(recipe: Recipe, environment: EnvFactory | None = None) -> Iterator[Parts]:
    """Put a run together; `environment` takes the place of the one that the recipe names."""
    if recipe.run.threads is not None:
        torch.set_num_threads(recipe.run.threads)
    with open_pool(recipe, environment) as pool:
        train_tasks = tasks_of(pool, recipe.environment.train_split, None)
        test_tasks = tasks_of(pool, recipe.environment.test_split, recipe.evaluation.tasks)
        policy = load_model(recipe.model, pool, seed=recipe.run.seed)
        engine = make_engine(recipe, policy)
        sampler = local_sampler(policy, training=True, max_rows=recipe.agent.concurrency)
        runner = Runner(
            sampler,
            pool,
            chat_format(policy.tokenizer),
            template_of(recipe.agent),
            runner_settings(recipe),
            context_length=policy.context_length,
        )
        yield Parts(pool, policy, engine, sampler, runner, train_tasks, test_tasks)


def make_engine(recipe: Recipe, policy: LoadedPolicy) -> LocalEngine:
    """What trains the policy; settings that do not fit it are an error for people."""
    try:
        return LocalEngine(
            policy,
            replace(recipe.optimizer, iterations=recipe.run.iterations),
            lora=recipe.model.lora,
            critic=critic_of(recipe),
            temperature=recipe.agent.temperature,
            reference=needs_reference(recipe),
            batch_tokens=recipe.model.batch_tokens,
            row_tokens=recipe.model.row_tokens,
            gradient_checkpointing=recipe.model.gradient_checkpointing,
        )
    except ValueError as error:
        raise TrainingError(f"{recipe.model.name} cannot be trained as asked: {error}") from None


def needs_reference(recipe: Recipe) -> bool:
    """Whether the algorithm compares the policy with the one that it began with."""
    return any(getattr(recipe.algorithm, name, 0.0) for name in ("kl_coef", "kl_reward_coef"))


def critic_of(recipe: Recipe) -> CriticSettings | None:
    """The critic, if the algorithm needs one."""
    if not getattr(recipe.algorithm, "needs_critic", False):
        return None
    return replace(recipe.critic, optimizer=replace(recipe.critic.optimizer, iterations=recipe.run.iterations))


def open_pool(recipe: Recipe, environment: EnvFactory | None = None) -> EnvPool:
    settings = recipe.environment
    if environment is not None:
        return EnvPool(environment, workers=settings.workers)
    return EnvPool(settings.name, options=settings.options, workers=settings.workers, unsandboxed=settings.unsandboxed)


def load_model(settings: ModelSettings, pool: EnvPool, *, seed: int) -> LoadedPolicy:
    """The policy that a run begins with."""
    if settings.name != "tiny":
        return load_policy(settings.name, device=settings.device, dtype=settings.dtype)
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


def template_of(agent: AgentSettings) -> Template:
    return Template(
        reasoning=agent.reasoning,
        max_observation_tokens=agent.max_observation_tokens,
        max_prompt_tokens=agent.max_prompt_tokens,
    )


def runner_settings(recipe: Recipe) -> RunnerSettings:
    agent = recipe.agent
    return RunnerSettings(
        parameters=SamplingParameters(max_tokens=agent.max_tokens, temperature=agent.temperature),
        max_turns=agent.max_turns,
        concurrency=agent.concurrency,
        episode_seconds=agent.episode_seconds,
        deterministic=recipe.run.deterministic,
    )
