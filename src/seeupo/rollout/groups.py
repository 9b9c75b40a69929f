"""Groups of attempts at one task. `rollout_groups` is for a loop of your own; `seeupo train` has the `Collector`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from seeupo.callbacks import Callback
from seeupo.protocols import Rollouts
from seeupo.types import Attempt, Task, Trajectory
from seeupo.utils.seeds import derive_seed


def group_attempts(tasks: Iterable[Task], group_size: int, seed: int) -> list[Attempt]:
    """Return the attempts at each task, task by task; the seed of each depends on its task and index only."""
    return [
        Attempt(f"{task.id}#{index}", task.id, task, derive_seed(seed, task.id, index), index)
        for task in tasks
        for index in range(group_size)
    ]


def observed(trajectories: Iterable[Trajectory], callback: Callback) -> Iterator[Trajectory]:
    """Yield trajectories as they finish, and show each of them to the callback."""
    for done, trajectory in enumerate(trajectories, 1):
        callback.on_trajectory(trajectory)
        callback.on_progress(done)
        yield trajectory


def rollout_groups(
    runner: Rollouts,
    tasks: Sequence[Task],
    *,
    group_size: int,
    seed: int,
    policy_version: int | None = None,
    callback: Callback | None = None,
) -> list[Trajectory]:
    """Attempt each task several times with the current policy, and return the trajectories, group by group.

    The attempts at one task form a group. A group in which the infrastructure failed an episode is left out, because
    the episode has no score. The same policy, tasks and seed give the same trajectories.

    Args:
        runner: Runs the episodes, in its environment and with its sampler.
        tasks: Tasks, each at most once: the group of a trajectory is the id of its task.
        group_size: G, the number of attempts at each task.
        seed: Random seed; use another one in every iteration.
        policy_version: Version of the weights that every turn must have been sampled with, as passed to
            `runner.sampler.sync`; not checked by default.
        callback: Observes trajectories and progress.

    Returns:
        Up to `len(tasks) * group_size` trajectories, in the order of tasks and attempts. The reward of each is its
        official score.
    """
    attempts = group_attempts(tasks, group_size, seed)
    finished = observed(runner.run(attempts), callback or Callback())
    trajectories = {trajectory.id: trajectory for trajectory in finished}
    failed = {trajectory.group for trajectory in trajectories.values() if trajectory.failure is not None}
    complete = [trajectories[attempt.id] for attempt in attempts if attempt.group not in failed]
    if policy_version is not None:
        check_versions(complete, policy_version)
    return complete


def has_equal_rewards(group: Iterable[Trajectory]) -> bool:
    """Return whether all rewards of a group are equal, so that its advantages are 0."""
    return len({trajectory.reward for trajectory in group}) <= 1


def check_versions(trajectories: Iterable[Trajectory], version: int) -> None:
    """Raise unless every turn was sampled with this version of the weights."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.policy_version != version:
                raise RuntimeError(
                    f"turn {turn.index + 1} of trajectory {turn.trajectory} was sampled with version "
                    f"{turn.policy_version} of the weights; expected version {version}. Call sampler.sync after every "
                    "update."
                )
