"""Metrics of an iteration. docs/reference/metrics.md explains each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seeupo.protocols import TrainEngine
from seeupo.rollout.collector import Collected
from seeupo.rollout.groups import has_equal_rewards
from seeupo.types import Task, Trajectory, Update, turns_of

GAP_TRAJECTORIES = 4
"""Number of trajectories that the gap between sampler and trainer is measured on."""


def sampler_gap(engine: TrainEngine, trajectories: Sequence[Trajectory]) -> float:
    """Return the mean absolute difference per token between the sampler's and the trainer's log-probs."""
    turns = turns_of(trajectories[:GAP_TRAJECTORIES])
    gaps: list[float] = [
        abs(trained - sampled)
        for turn, logprobs in zip(turns, engine.logprobs(turns), strict=True)
        for trained, sampled in zip(logprobs.tolist(), turn.behavior_logprobs or (), strict=False)
    ]
    return sum(gaps) / max(1, len(gaps))


def task_kinds(trajectories: Iterable[Trajectory], tasks: Iterable[Task]) -> dict[str, str]:
    """Return the kind of each attempted task by its id."""
    attempted = {trajectory.task for trajectory in trajectories}
    return {task.id: task.kind for task in tasks if task.id in attempted}


def iteration_record(
    iteration: int,
    collected: Collected,
    update: Update,
    kinds: Mapping[str, str],
    *,
    gap: float | None,
    update_tokens: int,
    learning_rate: float,
    timings: Mapping[str, float],
) -> dict[str, Any]:
    """Return the metrics record of an iteration; `kinds` is the kind of each task by its id."""
    trajectories = collected.trajectories
    turns = turns_of(trajectories)
    logprobs = [logprob for turn in turns for logprob in turn.behavior_logprobs or ()]
    action_tokens = sum(len(turn.action_ids) for turn in turns)
    by_kind: dict[str, list[float]] = {}
    for trajectory in trajectories:
        by_kind.setdefault(kinds[trajectory.task], []).append(trajectory.score or 0.0)
    collecting = timings.get("collect", 0.0)  # 0 if they were sampled during the update before
    overall = [metrics.values for metrics in update.metrics if metrics.agent is None]
    return {
        "kind": "iteration",
        "iteration": iteration,
        "reward_mean": mean([trajectory.reward for trajectory in update.trajectories]),
        "success": mean([float(trajectory.score == 1.0) for trajectory in trajectories]),
        "partial": mean([float(0 < (trajectory.score or 0.0) < 1) for trajectory in trajectories]),
        "episodes": len(trajectories),
        "groups": len(collected.groups),
        "dead_groups": sum(has_equal_rewards(group) for group in collected.groups.values()),
        "failed_episodes": collected.failed_episodes,
        "resampled_groups": collected.resampled,
        "replaced_groups": collected.replaced,
        "dropped_groups": collected.dropped,
        "mean_turns": mean([float(len(trajectory.turns)) for trajectory in trajectories]),
        "action_tokens": action_tokens,
        "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns),
        **sampler_metrics(collected.work),
        "update_tokens": update_tokens,
        "truncated_responses": sum(trajectory.truncated_responses for trajectory in trajectories),
        "entropy": -mean(logprobs) if logprobs else None,
        "sampler_gap": gap,
        "learning_rate": learning_rate,
        "stops": dict(sorted(Counter(trajectory.stop.value for trajectory in trajectories).items())),
        "kinds": {kind: mean(rewards) for kind, rewards in sorted(by_kind.items())} if len(by_kind) > 1 else {},
        "algorithm": dict(overall[0]) if overall else {},
        "turns": [
            {"turn": m.agent, **({"agent_role": m.agent_role} if m.agent_role else {}), **m.values}
            for m in update.metrics
            if m.agent is not None
        ],
        "timings": {**timings, "tokens_per_second": action_tokens / collecting if collecting else None},
    }


def sampler_metrics(work: Mapping[str, int]) -> dict[str, Any]:
    """Return metrics of what the sampler computed; none if it does not count that."""
    if not work:
        return {}
    drafted = work.get("drafted", 0)
    return {
        "prefilled_tokens": work.get("prefilled", 0),
        "tokens_per_pass": work["tokens"] / work["passes"],
        "draft_acceptance": work.get("accepted", 0) / drafted if drafted else None,
    }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
