"""What an iteration is described by, in numbers. docs/metrics.md explains each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seeupo.training.collecting import Collected, has_equal_rewards
from seeupo.types import Task, TrainEngine, Trajectory, Update, samples_of

GAP_TRAJECTORIES = 4
"""How many trajectories the gap between sampler and trainer is measured on."""


def sampler_gap(engine: TrainEngine, trajectories: Sequence[Trajectory]) -> float:
    """How far the sampler's log-probs are from the trainer's, which should be the same: a mean over tokens."""
    samples = samples_of(trajectories[:GAP_TRAJECTORIES])
    gaps: list[float] = [
        abs(mine - theirs)
        for sample, logprobs in zip(samples, engine.logprobs(samples), strict=True)
        for mine, theirs in zip(logprobs.tolist(), sample.behaviour_logprobs or (), strict=False)
    ]
    return sum(gaps) / max(1, len(gaps))


def kinds_of(trajectories: Iterable[Trajectory], tasks: Iterable[Task]) -> dict[str, str]:
    """The kind of each task that the trajectories attempt, by its id."""
    attempted = {trajectory.task for trajectory in trajectories}
    return {task.id: task.kind for task in tasks if task.id in attempted}


def iteration_record(
    iteration: int,
    collected: Collected,
    update: Update,
    kinds: Mapping[str, str],
    *,
    gap: float,
    learning_rate: float,
    timings: Mapping[str, float],
) -> dict[str, Any]:
    """The record of an iteration: what was collected, what the update made of it, and how long it took.

    `kinds` is the kind of each task by its id.
    """
    trajectories = collected.trajectories
    samples = samples_of(trajectories)
    logprobs = [logprob for sample in samples for logprob in sample.behaviour_logprobs or ()]
    action_tokens = sum(len(sample.action_ids) for sample in samples)
    by_kind: dict[str, list[float]] = {}
    for trajectory in trajectories:
        by_kind.setdefault(kinds[trajectory.task], []).append(trajectory.reward)
    overall = [metrics.values for metrics in update.metrics if metrics.agent is None]
    return {
        "kind": "iteration",
        "iteration": iteration,
        "reward_mean": mean([trajectory.reward for trajectory in update.trajectories]),
        "success": mean([float(trajectory.reward == 1.0) for trajectory in trajectories]),
        "episodes": len(trajectories),
        "groups": len(collected.groups),
        "dead_groups": sum(has_equal_rewards(group) for group in collected.groups.values()),
        "failed_episodes": collected.failed_episodes,
        "resampled_groups": collected.resampled,
        "replaced_groups": collected.replaced,
        "dropped_groups": collected.dropped,
        "mean_turns": mean([float(len(trajectory.samples)) for trajectory in trajectories]),
        "action_tokens": action_tokens,
        "prompt_tokens": sum(len(sample.prompt_ids) for sample in samples),
        "cut_responses": int(sum(trajectory.timings["cut_responses"] for trajectory in trajectories)),
        "entropy": -mean(logprobs) if logprobs else None,
        "sampler_gap": gap,
        "learning_rate": learning_rate,
        "stops": dict(sorted(Counter(trajectory.stop.value for trajectory in trajectories).items())),
        "kinds": {kind: mean(rewards) for kind, rewards in sorted(by_kind.items())} if len(by_kind) > 1 else {},
        "algorithm": dict(overall[0]) if overall else {},
        "turns": [{"turn": m.agent, **m.values} for m in update.metrics if m.agent is not None],
        "timings": {**timings, "tokens_per_second": action_tokens / max(1e-9, timings.get("collect", 0.0))},
    }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
