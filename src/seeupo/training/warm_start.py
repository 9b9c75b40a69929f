"""The warm start: supervised learning on demonstrations, so that reinforcement learning has something to reinforce."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from seeupo.agents.chat import ChatFormat
from seeupo.agents.template import Conversation, Template
from seeupo.agents.trajectories import TrajectoryFileError, read_trajectories
from seeupo.algorithms.batch import action_mask
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.envs.check import Game, drive, game
from seeupo.envs.pool import EnvPool, Mistakes
from seeupo.training.failures import TrainingError
from seeupo.training.parts import Parts
from seeupo.training.passes import Passes
from seeupo.training.recipe import Recipe, WarmStartSettings
from seeupo.types import Sample, Status, StepResult, Task, TrainEngine

Demonstration = tuple[Sample, ...]
"""The turns of one episode, as a policy would have seen and said them."""


@dataclass(frozen=True)
class LogLikelihood:
    """The objective of supervised learning: the log-probs of what was demonstrated."""

    needs_entropy: bool = False

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, samples: Sequence[Sample]) -> Tensor:
        return torch.where(action_mask(samples).to(logprobs_NL.device), logprobs_NL, 0.0).sum(1)


def optimizer_of(settings: WarmStartSettings) -> OptimizerSettings:
    """A short training: the rate falls to 0, and a second moment that forgets quickly follows it."""
    return OptimizerSettings(
        learning_rate=settings.learning_rate,
        schedule="cosine",
        warmup=settings.warmup,
        iterations=settings.batches,
        beta2=0.95,
    )


class Lessons:
    """Demonstrations in batches. Each pass over all of them is in an order of its own, drawn from the seed."""

    def __init__(self, demonstrations: Sequence[Demonstration], settings: WarmStartSettings, *, seed: int) -> None:
        self.demonstrations, self.settings = demonstrations, settings
        self._passes = Passes(len(demonstrations), f"{seed}/demonstrations")

    def batch(self, step: int) -> list[Sample]:
        """The samples of a step, counted from 0; they depend on nothing that happened before."""
        size = self.settings.batch_episodes
        places = range(step * size, (step + 1) * size)
        return [sample for place in places for sample in self.demonstrations[self._passes[place]]]

    def teach(self, engine: TrainEngine, step: int) -> float:
        """One optimizer step; the loss per token before it."""
        samples = self.batch(step)
        tokens = sum(len(sample.action_ids) for sample in samples)
        return -engine.step(samples, LogLikelihood(), normalizer=tokens).values["objective"]


def lessons_for(recipe: Recipe, parts: Parts, heard: Callable[[int], None]) -> Lessons:
    """Demonstrations from wherever the recipe says, in batches; the same recipe always gives the same."""
    settings, seed = recipe.warm_start, recipe.run.seed
    assert settings is not None
    if settings.file is not None:
        vocabulary = int(parts.policy.model.config.get_text_config().vocab_size)
        chosen = demonstrations_in(Path(settings.file), settings, vocabulary=vocabulary)
        return Lessons(fitting(chosen, parts.policy.context_length), settings, seed=seed)
    runner, found = parts.runner, {}
    playing = demonstrate(
        parts.pool,
        parts.train_tasks,
        runner.chat,
        runner.template,
        settings,
        max_turns=recipe.agent.max_turns,
        seed=seed,
    )
    for number, demonstration in playing:
        found[number] = demonstration
        heard(len(found))
    chosen = fitting([found[number] for number in sorted(found)], parts.policy.context_length)
    return Lessons(chosen, settings, seed=seed)


def fitting(demonstrations: list[Demonstration], context: int) -> list[Demonstration]:
    """The demonstrations, if the model can take them."""
    longest = max(len(s.prompt_ids) + len(s.action_ids) for samples in demonstrations for s in samples)
    if longest > context:
        raise TrainingError(
            f"the longest demonstration has {longest} tokens and the model takes {context}: use a model with a longer "
            "context (model.tiny.context for tiny), or shorter tasks or prompts"
        )
    return demonstrations


def demonstrate(
    pool: EnvPool,
    tasks: Sequence[Task],
    chat: ChatFormat,
    template: Template,
    settings: WarmStartSettings,
    *,
    max_turns: int,
    seed: int,
) -> Iterator[tuple[int, Demonstration]]:
    """Let the environment's expert play, in part with mistakes, and write down what a policy would have said.

    Numbered, in the order in which they finish: whoever is first must not decide what is learned first.
    """
    draw = random.Random(f"{seed}/demonstrations")
    plans = [
        (number, draw.choice(tasks), draw.getrandbits(31), draw.random() < settings.noisy)
        for number in range(settings.episodes)
    ]

    def demonstration(number: int, task: Task, task_seed: int, noisy: bool) -> Game[tuple[int, Demonstration]]:
        mistakes = Mistakes(task_seed, settings.mistakes) if noisy else None
        expert = pool.expert(task, mistakes=mistakes)
        if expert is None:
            raise TrainingError(
                f"nobody knows how to solve task {task.id} of {pool.name}; give warm_start.file instead of an expert"
            )
        heard: list[StepResult] = []
        said: list[Future[str]] = []

        def choose(result: StepResult) -> Future[str]:
            heard.append(result)
            said.append(expert.submit(result))
            return said[-1]

        played = yield from game(pool, task, task_seed, choose, max_turns=max_turns)
        if played.failure is not None:
            raise TrainingError(f"a demonstration of task {task.id} of {pool.name} failed: {played.failure}")
        conversation, samples = Conversation.begin(chat, template, heard[0]), []
        for turn, text in enumerate(said):
            ids = chat.response(text.result())
            samples.append(Sample(f"demonstration {number}", turn, conversation.prompt_ids(), ids))
            if turn + 1 < len(heard):
                conversation.add(ids, heard[turn + 1])
        return number, tuple(samples)

    return drive(demonstration(*plan) for plan in plans)


def demonstrations_in(path: Path, settings: WarmStartSettings, *, vocabulary: int) -> list[Demonstration]:
    """What trajectories on disk demonstrate: those with enough reward, in the tokens they were written in."""
    try:
        trajectories = [each for each in read_trajectories(path) if each.status is Status.OK]
    except (TrajectoryFileError, OSError) as error:
        raise TrainingError(f"warm_start.file cannot be read: {error}; name a file of trajectories of a run") from None
    chosen = [each.samples for each in trajectories if each.reward >= settings.min_reward and each.samples]
    if not chosen:
        raise TrainingError(
            f"warm_start.file: none of the {len(trajectories)} trajectories in {path} has a reward of at least "
            f"{settings.min_reward}; lower warm_start.min_reward"
        )
    highest = max(token for samples in chosen for s in samples for token in (*s.prompt_ids, *s.action_ids))
    if highest >= vocabulary:
        raise TrainingError(
            f"warm_start.file: {path} contains token {highest} and the model knows {vocabulary}; "
            "it was written with another tokenizer"
        )
    return chosen
