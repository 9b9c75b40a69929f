"""The whole training loop in one file: load, warm start, then collect, update and evaluate.

A tiny model learns to use the tools of `pocket`, and the success rate is printed after each iteration:

    python examples/minimal_loop.py

`update` is Algorithm 1 of the paper. `seeupo.algorithms.SeeUPO` takes the same steps and adds options, metrics and
credit records; `seeupo.train` adds checkpoints, exact resume, alarms and a report around the loop.

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
from torch.nn.utils.rnn import pad_sequence

from seeupo.rl import (
    EnvPool,
    LocalEngine,
    Optimizer,
    Runner,
    SamplingParameters,
    Trajectory,
    Turn,
    imitate,
    load_policy,
    rollout_groups,
)  # fmt: skip

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
        old_NL = pad_sequence([self.old[turn.key] for turn in turns], batch_first=True).to(logprobs_NL)
        lengths_N = torch.tensor([len(turn.action_ids) for turn in turns])
        mask_NL = torch.arange(logprobs_NL.shape[1]) < lengths_N[:, None]
        ratio_N = (torch.where(mask_NL, logprobs_NL - old_NL, 0.0).sum(1) / lengths_N).exp()
        carried_N = logprobs_NL.new_tensor([self.carried[turn.trajectory] for turn in turns])
        return torch.minimum(ratio_N * carried_N, ratio_N.clamp(0.8, 1.2) * carried_N)


def update(engine: LocalEngine, trajectories: Sequence[Trajectory]) -> None:
    """Update the policy turn by turn, the last turn first, and carry the advantage M from turn to turn."""
    groups: dict[str, list[float]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, []).append(trajectory.reward)
    means = {group: sum(rewards) / len(rewards) for group, rewards in groups.items()}
    centered_B = torch.tensor([tau.reward - means[tau.group] for tau in trajectories], dtype=torch.float64)
    advantages = (centered_B / centered_B.square().mean().sqrt().clamp(min=1e-8)).tolist()
    carried = {tau.id: advantage for tau, advantage in zip(trajectories, advantages, strict=True)}

    informative = [tau for tau in trajectories if carried[tau.id] != 0]
    turns = [turn for tau in informative for turn in tau.turns]
    old = {turn.key: logprobs for turn, logprobs in zip(turns, engine.logprobs(turns), strict=True)}
    for index in reversed(range(max((len(tau.turns) for tau in informative), default=0))):
        pool = [tau.turns[index] for tau in informative if len(tau.turns) > index]
        engine.step(pool, ClippedObjective(old, dict(carried)), normalizer=len(trajectories), agent=index)
        for turn, new in zip(pool, engine.logprobs(pool), strict=True):
            carried[turn.trajectory] *= (new.double() - old[turn.key].double()).mean().exp().item()


def main(settings: Settings | None = None) -> list[float]:
    """Train, and return the success rate on held-out tasks before training and after each iteration."""
    settings = settings or Settings()
    generator = random.Random(settings.seed)
    with EnvPool("pocket", options={"turns": [2, 3], "train_tasks": 4096, "test_tasks": settings.test_tasks}) as pool:
        size = {"width": settings.width, "layers": 2, "heads": 8, "context": 128, "words": pool.vocabulary()}
        policy = load_policy("tiny", tiny=size)
        optimizer = Optimizer(learning_rate=settings.learning_rate, beta1=0.0)
        engine = LocalEngine(policy, optimizer)
        runner = Runner(policy, pool, parameters=SamplingParameters(max_tokens=8), max_turns=4, concurrency=256)
        imitate(
            engine, runner, pool.tasks("train"), then=optimizer, episodes=settings.demonstrations, noisy=0.75,
            mistakes=MISTAKES, batches=settings.warm_start_batches, batch_episodes=64, learning_rate=2e-3,
            seed=settings.seed,
        )  # fmt: skip

        history = []
        for iteration in range(settings.iterations + 1):
            if iteration > 0:
                tasks = generator.sample(pool.tasks("train"), settings.tasks)
                update(engine, rollout_groups(runner, tasks, group_size=settings.group_size, seed=iteration))
            runner.sampler.sync(engine, iteration)
            held_out = rollout_groups(runner, pool.tasks("test"), group_size=1, seed=settings.seed)
            history.append(sum(tau.score == 1.0 for tau in held_out) / len(held_out))
            print(f"iteration {iteration:2d}: success rate {history[-1]:.2f} on held-out tasks")
    return history


if __name__ == "__main__":
    torch.set_num_threads(1)  # in a model this small a second thread only waits
    main()
