"""The whole training loop in one file: load, warm start, then collect, update and evaluate.

A tiny model learns to use the tools of `pocket`, and the success rate is printed after each iteration:

    python examples/minimal_loop.py

`update` is Algorithm 1 of the paper. `seeupo.algorithms.SeeUPO` takes the same steps and adds options, metrics and
credit records; `seeupo.training.loop` adds checkpoints, exact resume and alarms around it.

Dimension suffixes of tensors:
    B  trajectories of an iteration
    N  turns of a micro-batch
    L  action tokens of a turn, padded on the right
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seeupo.algorithms.common.batch import action_mask, padded
from seeupo.config.schema import WarmStartSettings
from seeupo.core import clipped_objective, group_advantages, sequence_log_ratio
from seeupo.engines.local import LocalEngine
from seeupo.engines.optimizer import OptimizerSettings
from seeupo.envs.pool.pool import EnvPool
from seeupo.models.loading import load_policy
from seeupo.models.tiny import TinyConfig
from seeupo.protocols import TrainableEngine, TrainEngine
from seeupo.rollout.runner import Runner, RunnerSettings, make_runner
from seeupo.rollout.template import Template
from seeupo.training.warm_start import Demonstrations, demonstrate, warm_start_optimizer
from seeupo.types import Attempt, SamplingParameters, Task, Trajectory, Turn, turns_of
from seeupo.utils.seeds import derive_seed

MAX_TURNS = 4
MISTAKES = {"stops_early": 0.8, "wrong_choice": 0.05, "wrong_word": 0.0, "skipped_lookup": 0.0, "wrong_tool": 0.0}


@dataclass(frozen=True)
class Settings:
    """Settings of the example; the defaults take about a minute on one CPU core."""

    seed: int = 0
    iterations: int = 12
    tasks: int = 32
    group_size: int = 8
    test_tasks: int = 64
    demonstrations: int = 2048
    warm_start_batches: int = 300
    learning_rate: float = 2e-4
    width: int = 128


@dataclass(frozen=True)
class ClippedObjective:
    """min(r M, clip(r) M) per turn, where r is the geometric mean of pi / pi_old over the action's tokens."""

    old: Mapping[tuple[str, int], Tensor]
    carried: Mapping[str, float]
    needs_entropy: bool = False

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, turns: Sequence[Turn]) -> Tensor:
        old_NL = padded(turns, self.old).to(logprobs_NL)
        log_ratio_N = sequence_log_ratio(logprobs_NL, old_NL, action_mask(turns), length_normalize=True)
        carried_N = logprobs_NL.new_tensor([self.carried[turn.trajectory] for turn in turns])
        return clipped_objective(log_ratio_N, carried_N, clip=(0.2, 0.2))


def update(engine: TrainEngine, trajectories: Sequence[Trajectory]) -> None:
    """Update the policy turn by turn, the last turn first, and carry the advantage M from turn to turn."""
    groups = sorted({trajectory.group for trajectory in trajectories})
    groups_B = torch.tensor([groups.index(trajectory.group) for trajectory in trajectories])
    rewards_B = torch.tensor([trajectory.reward for trajectory in trajectories], dtype=torch.float64)
    advantages_B = group_advantages(rewards_B, groups_B, normalize="batch")
    carried = {each.id: advantage for each, advantage in zip(trajectories, advantages_B.tolist(), strict=True)}

    informative = [trajectory for trajectory in trajectories if carried[trajectory.id] != 0]
    turns = turns_of(informative)
    old = {turn.key: logprobs for turn, logprobs in zip(turns, engine.logprobs(turns), strict=True)}
    for index in reversed(range(max((len(trajectory.turns) for trajectory in informative), default=0))):
        pool = [trajectory.turns[index] for trajectory in informative if len(trajectory.turns) > index]
        engine.step(pool, ClippedObjective(old, dict(carried)), normalizer=len(trajectories), agent=index)
        for turn, new in zip(pool, engine.logprobs(pool), strict=True):
            carried[turn.trajectory] *= (new.double() - old[turn.key].double()).mean().exp().item()


def rollout(runner: Runner, tasks: Sequence[Task], attempts: int, *, seed: int) -> list[Trajectory]:
    """Attempt each task several times. The attempts at one task form a group."""
    planned = [
        Attempt(f"{task.id}#{index}", task.id, task, derive_seed(seed, task.id, index), index)
        for task in tasks
        for index in range(attempts)
    ]
    # An episode that the infrastructure failed has no score. (The training loop samples its whole group again.)
    finished = [trajectory for trajectory in runner.run(planned) if trajectory.failure is None]
    return sorted(finished, key=lambda trajectory: trajectory.id)


def warm_start(engine: TrainableEngine, runner: Runner, tasks: Sequence[Task], settings: Settings) -> None:
    """Imitate an expert that makes mistakes, because a policy that never succeeds has nothing to reinforce."""
    episodes, batches, seed = settings.demonstrations, settings.warm_start_batches, settings.seed
    options = WarmStartSettings(
        episodes=episodes, noisy=0.75, mistakes=MISTAKES, batches=batches, batch_episodes=64, learning_rate=2e-3
    )
    found = dict(demonstrate(runner.pool, tasks, runner.chat, runner.template, options, max_turns=MAX_TURNS, seed=seed))
    demonstrations = Demonstrations([found[number] for number in sorted(found)], options, seed=seed)
    engine.set_optimizer(warm_start_optimizer(options))
    for step in range(options.batches):
        engine.begin_iteration(step)
        demonstrations.train_step(engine, step)


def main(settings: Settings | None = None) -> list[float]:
    """Train, and return the success rate on held-out tasks before training and after each iteration."""
    settings = settings or Settings()
    generator = random.Random(settings.seed)
    with EnvPool("pocket", options={"turns": [2, 3], "train_tasks": 4096, "test_tasks": settings.test_tasks}) as pool:
        words = pool.vocabulary()
        policy = load_policy("tiny", tiny=TinyConfig(width=settings.width, layers=2, heads=8, context=128, words=words))
        optimizer = OptimizerSettings(learning_rate=settings.learning_rate, beta1=0.0)
        engine = LocalEngine(policy, optimizer)
        sampling = SamplingParameters(max_tokens=8)
        episodes = RunnerSettings(parameters=sampling, max_turns=MAX_TURNS, concurrency=256, deterministic=True)
        runner = make_runner(policy, pool, Template(reasoning=False), episodes, training=True)
        warm_start(engine, runner, pool.tasks("train"), settings)
        engine.set_optimizer(optimizer)

        history = []
        for iteration in range(settings.iterations + 1):
            if iteration > 0:
                tasks = generator.sample(pool.tasks("train"), settings.tasks)
                update(engine, rollout(runner, tasks, settings.group_size, seed=derive_seed(settings.seed, iteration)))
            runner.sampler.sync(engine, iteration)
            held_out = rollout(runner, pool.tasks("test"), 1, seed=settings.seed)
            history.append(sum(trajectory.score == 1.0 for trajectory in held_out) / len(held_out))
            print(f"iteration {iteration:2d}: success rate {history[-1]:.2f} on held-out tasks")
    return history


if __name__ == "__main__":
    main()
