"""The warm start: supervised learning on demonstrations before reinforcement learning."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import action_mask
from seeupo.callbacks import Callback
from seeupo.config.optimizer_settings import OptimizerSettings
from seeupo.config.schema import WarmStartSettings
from seeupo.envs.pool.pool import Mistakes
from seeupo.errors import DemonstrationFileError, TrainingError, TrajectoryFileError
from seeupo.evaluation.scripted import Rollout, recorded_rollout, run_rollouts
from seeupo.models.tokenizer_check import check_text
from seeupo.protocols import TrainableEngine
from seeupo.rollout.runner import Runner
from seeupo.rollout.template import Conversation
from seeupo.runs.demonstration_files import data_format
from seeupo.training.demonstrations import (
    Demonstration,
    PackedDemonstrations,
    read_chat_demonstrations,
    read_trajectory_demonstrations,
)
from seeupo.training.setup import Components
from seeupo.types import Attempt, Task, Trajectory, Turn, number_of_tokens
from seeupo.utils.shuffling import ShuffledPasses


@dataclass(frozen=True)
class LogLikelihood:
    """The objective of supervised learning: the log-probs of the demonstrated actions."""

    needs_entropy: bool = False

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, turns: Sequence[Turn]) -> Tensor:
        return torch.where(action_mask(turns).to(logprobs_NL.device), logprobs_NL, 0.0).sum(1)


def warm_start_optimizer(settings: WarmStartSettings) -> OptimizerSettings:
    """Return the optimizer settings: cosine decay to 0, and a short memory of the second moment to follow it."""
    return OptimizerSettings(
        learning_rate=settings.learning_rate,
        schedule="cosine",
        warmup=settings.warmup,
        iterations=settings.batches,
        beta2=0.95,
    )


class Demonstrations:
    """Demonstrations in batches; each pass over all of them has a new random order.

    With `first_adapter`, a role or "", all turns train the first adapter of a model with one per turn or role.
    """

    def __init__(
        self,
        demonstrations: Sequence[Demonstration],
        settings: WarmStartSettings,
        *,
        seed: int,
        first_adapter: str | None = None,
    ) -> None:
        self.demonstrations = demonstrations
        self.settings = settings
        self.first_adapter = first_adapter
        self._passes = ShuffledPasses(len(demonstrations), f"{seed}/demonstrations")

    def batch(self, step: int) -> list[Turn]:
        """Return the turns of a step, from 0; they depend on the step only."""
        size = self.settings.batch_episodes
        positions = range(step * size, (step + 1) * size)
        return [turn for position in positions for turn in self.demonstrations[self._passes[position]]]

    def repeated(self) -> list[Demonstration]:
        """Return the demonstrations that are trained on more than once; of those with the same tokens only one."""
        visits = range(self.settings.batches * self.settings.batch_episodes)
        uses = Counter(self._passes[position] for position in visits)
        totals = Counter[bytes]()
        first = dict[bytes, int]()
        for number, demonstration in enumerate(self.demonstrations):
            tokens = repr([(turn.prompt_ids, turn.action_ids) for turn in demonstration])
            digest = hashlib.sha256(tokens.encode()).digest()  # the tokens of all would not fit into memory
            totals[digest] += uses[number]
            first.setdefault(digest, number)
        return [self.demonstrations[number] for digest, number in first.items() if totals[digest] > 1]

    def train_step(self, engine: TrainableEngine, step: int) -> float:
        """Take the optimizer step with this number, from 0, and return the loss per token before it."""
        engine.begin_iteration(step)
        turns = self.batch(step)
        if self.first_adapter is not None:
            turns = [replace(turn, index=0, agent_role=self.first_adapter) for turn in turns]
        tokens = sum(len(turn.action_ids) for turn in turns)
        return -engine.step(turns, LogLikelihood(), normalizer=tokens).values["objective"]


def imitate(
    engine: TrainableEngine,
    runner: Runner,
    tasks: Sequence[Task],
    *,
    then: OptimizerSettings,
    episodes: int = 1024,
    batches: int = 100,
    batch_episodes: int = 32,
    learning_rate: float = 1e-4,
    noisy: float = 0.0,
    mistakes: Mapping[str, float] | None = None,
    seed: int = 0,
    callback: Callback | None = None,
) -> float:
    """Train a policy on demonstrations of the environment's expert: supervised learning before reinforcement learning.

    A policy that never succeeds has nothing to reinforce. Call `runner.sampler.sync` afterwards, as after any change of
    the weights.

    Args:
        engine: Trains the policy.
        runner: Its environment, chat format and template give the demonstrations; it samples nothing.
        tasks: Tasks to demonstrate, drawn with replacement.
        then: Optimizer of the engine afterwards, with fresh moments.
        episodes: Number of demonstrations.
        batches: Number of optimizer steps.
        batch_episodes: Number of demonstrations per step.
        learning_rate: Peak learning rate; it decays to 0 along a cosine.
        noisy: Fraction of demonstrations with mistakes, from which the expert recovers.
        mistakes: Rate of each mistake, by the environment's names; its defaults if not given.
        seed: Random seed.
        callback: Observes the progress.

    Returns:
        The loss per token at the last step.
    """
    callback = callback or Callback()
    settings = WarmStartSettings(
        episodes=episodes,
        noisy=noisy,
        mistakes=mistakes or {},
        batches=batches,
        batch_episodes=batch_episodes,
        learning_rate=learning_rate,
    )
    callback.on_phase("demonstrations", episodes)
    shown = demonstrate(runner, tasks, settings, seed=seed, callback=callback)
    demonstrations = Demonstrations(shown, settings, seed=seed)
    engine.set_optimizer(warm_start_optimizer(settings))
    callback.on_phase("warm start", batches)
    loss = math.nan
    for step in range(batches):
        loss = demonstrations.train_step(engine, step)
        callback.on_progress(step + 1, f"loss {loss:.3f}")
    engine.set_optimizer(then)
    return loss


def load_demonstrations(components: Components, callback: Callback | None = None) -> Demonstrations:
    """Return the demonstrations of a run: from a file, or from the environment's expert."""
    recipe = components.recipe
    settings = recipe.warm_start
    assert settings is not None
    seed = recipe.run.seed
    runner = components.runner
    callback = callback or Callback()
    demonstrations: Sequence[Demonstration]
    if settings.file is None:
        demonstrations = demonstrate(runner, components.train_tasks, settings, seed=seed, callback=callback)
    else:
        packed = PackedDemonstrations()
        for demonstration in read_demonstrations(Path(settings.file), settings, runner, components.vocab_size):
            try:
                packed.append(demonstration)
            except DemonstrationFileError as error:
                raise TrainingError(f"warm_start.file: {settings.file}: {error}") from None
            callback.on_progress(len(packed))
        demonstrations = packed
    lora = recipe.model.lora
    first = None if lora is None or lora.adapters is None else "".join(lora.per_role[:1])
    return Demonstrations(demonstrations, settings, seed=seed, first_adapter=first)


def read_demonstrations(
    path: Path, settings: WarmStartSettings, runner: Runner, vocab_size: int
) -> Iterator[Demonstration]:
    """Yield the demonstrations of a file of any format; of trajectories, those with enough reward."""
    context = runner.context_length
    try:
        if data_format(path) == "trajectories":
            number, usable = 0, False
            for trajectory in read_trajectory_demonstrations(path, vocab_size=vocab_size, context=context):
                number += 1
                if is_usable(trajectory, settings.min_reward):
                    usable = True
                    yield trajectory.turns
            if not usable:
                raise TrainingError(
                    f"warm_start.file: none of the {number} trajectories in {path} has a reward of at least "
                    f"{settings.min_reward}; lower warm_start.min_reward"
                )
        else:
            for _, demonstration in read_chat_demonstrations(path, runner.chat, runner.template, context=context):
                yield demonstration
    except (DemonstrationFileError, TrajectoryFileError) as error:
        raise TrainingError(f"warm_start.file: {error}") from None


def is_usable(trajectory: Trajectory, min_reward: float) -> bool:
    """Return whether a trajectory has turns to imitate and enough reward, and did not fail."""
    return trajectory.failure is None and trajectory.reward >= min_reward and bool(trajectory.turns)


def demonstrate(
    runner: Runner, tasks: Sequence[Task], settings: WarmStartSettings, *, seed: int, callback: Callback
) -> list[Demonstration]:
    """Run the environment's expert, in part with mistakes, and return its demonstrations.

    They are in the order of training, which must not depend on which episode finishes first.
    """
    pool = runner.pool
    chat = runner.chat
    generator = random.Random(f"{seed}/demonstrations")
    plans = [
        (number, generator.choice(tasks), generator.getrandbits(31), generator.random() < settings.noisy)
        for number in range(settings.episodes)
    ]

    def demonstration(number: int, task: Task, task_seed: int, noisy: bool) -> Rollout[tuple[int, Demonstration]]:
        mistakes = Mistakes(task_seed, settings.mistakes) if noisy else None
        expert = pool.expert(task, mistakes=mistakes)
        if expert is None:
            raise TrainingError(
                f"{pool.name} has no expert for task {task.id}; set warm_start.file to a file of demonstrations, or "
                "train without a warm start: --warm_start none"
            )
        name = f"demonstration {number}"
        outcome, seen, actions = yield from recorded_rollout(
            pool, Attempt(name, name, task, task_seed), expert, max_turns=runner.max_turns
        )
        if outcome.failure is not None:
            problem = f"a demonstration of task {task.id} of {pool.name} failed: {outcome.failure}"
            raise TrainingError(*problem.split("\n"))
        if number == 0 and actions:
            check_text(chat.tokenizer, actions[0], f"the first action of the expert of {pool.name}")
        conversation, turns = Conversation.start(chat, runner.template, seen[0]), []
        for index, action in enumerate(actions):
            ids = chat.response(action)
            turns.append(Turn(name, index, conversation.prompt_ids(), ids))
            if index + 1 < len(seen):
                conversation.add(ids, seen[index + 1])
        return number, tuple(turns)

    finished: dict[int, Demonstration] = {}
    for number, turns in run_rollouts(demonstration(*plan) for plan in plans):
        finished[number] = turns
        callback.on_progress(len(finished))
    longest = max((number_of_tokens([turn]) for turns in finished.values() for turn in turns), default=0)
    if longest > runner.context_length:
        raise TrainingError(
            f"the longest demonstration has {longest} tokens; the model's context is {runner.context_length}. Use a "
            "model with a longer context (model.tiny.context for tiny), or shorter tasks or prompts"
        )
    return [finished[number] for number in range(settings.episodes)]
