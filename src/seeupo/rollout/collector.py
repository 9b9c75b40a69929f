"""Collect the groups of an iteration: several trajectories per task, resampled until they are complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from seeupo.callbacks import Callback
from seeupo.config.schema import REWARDS, CollectSettings
from seeupo.envs.declare import Role
from seeupo.envs.references import resolve
from seeupo.envs.tracebacks import explain_exception
from seeupo.envs.trust import check_trust
from seeupo.errors import TrainingError
from seeupo.protocols import Rollouts
from seeupo.rollout.groups import check_versions, has_equal_rewards, observed
from seeupo.types import Attempt, Task, Trajectory
from seeupo.utils.numbers import finite_number
from seeupo.utils.seeds import derive_seed
from seeupo.utils.shuffling import ShuffledPasses

RewardFunction = Callable[[Trajectory], float]


@dataclass
class Collected:
    """Complete groups of an iteration, in a fixed order, with their scores and the rewards that are trained on.

    Attributes:
        groups: Trajectories by the name of their group.
        resampled: Number of groups sampled again after an infrastructure failure.
        replaced: Number of groups replaced because all their rewards were equal.
        dropped: Number of groups left out after repeated failures.
        failed_episodes: Number of failed episodes in all rounds; `failure` is the last message.
        work: What the sampler computed in all rounds (`Completion.work`).
    """

    groups: dict[str, tuple[Trajectory, ...]] = field(default_factory=dict)
    resampled: int = 0
    replaced: int = 0
    dropped: int = 0
    failed_episodes: int = 0
    failure: str = ""
    work: Mapping[str, int] = field(default_factory=dict)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for name in sorted(self.groups) for trajectory in self.groups[name]]


class Collector:
    """Chooses tasks and runs a group of attempts at each of them.

    Args:
        reward: Function that replaces the score as the reward of a trajectory.

    Attributes:
        drawn: Number of tasks chosen since the start of the run. Every task is chosen once, in random order, before any
            is chosen again.
    """

    def __init__(
        self,
        runner: Rollouts,
        tasks: Sequence[Task],
        settings: CollectSettings,
        *,
        seed: int,
        reward: RewardFunction | None = None,
    ) -> None:
        self.runner = runner
        self.tasks = tasks
        self.settings = settings
        self.seed = seed
        self.reward = reward
        self.drawn = 0
        self._passes = ShuffledPasses(len(tasks), f"{seed}/tasks")

    def collect(self, iteration: int, *, policy_version: int, callback: Callback | None = None) -> Collected:
        """Sample the groups of an iteration; the same iteration and `drawn` give the same attempts.

        Args:
            policy_version: Version of the weights that every turn must have been sampled with.
            callback: Observes trajectories and progress.
        """
        callback = callback or Callback()
        collected = Collected()
        names = [f"{iteration:05d}-{number:03d}" for number in range(self.settings.tasks)]
        self._add_groups(names, collected, callback)
        for round_ in range(1, self.settings.equal_rounds + 1):
            equal = [name for name, group in collected.groups.items() if has_equal_rewards(group)]
            for name in equal:
                del collected.groups[name]
            collected.replaced += len(equal)
            self._add_groups([f"{name.partition('~')[0]}~{round_}" for name in equal], collected, callback)
        if not collected.groups:
            problem = (
                f"every group of iteration {iteration} had a failed episode, in {self.settings.failed_rounds + 1} "
                f"rounds; check the environment. The last failure: {collected.failure}"
            )
            raise TrainingError(*problem.split("\n"))
        check_versions(collected.trajectories, policy_version)
        return collected

    def _add_groups(self, names: Sequence[str], collected: Collected, callback: Callback) -> None:
        """Add a group of the next task for each name; a group with a failed episode is resampled."""
        missing = dict(zip(names, self._next_tasks(len(names)), strict=True))
        for round_ in range(self.settings.failed_rounds + 1):
            collected.resampled += len(missing) if round_ else 0
            groups = self._sample_groups(missing, round_, callback)
            collected.work = dict(Counter(collected.work) + self.runner.work)
            for name, group in groups.items():
                failures = [trajectory.failure for trajectory in group if trajectory.failure is not None]
                if failures:
                    collected.failed_episodes += len(failures)
                    collected.failure = failures[0].message
                else:
                    collected.groups[name] = group
                    del missing[name]
            if not missing:
                return
        collected.dropped += len(missing)

    def _sample_groups(
        self, wanted: Mapping[str, Task], round_: int, callback: Callback
    ) -> dict[str, tuple[Trajectory, ...]]:
        suffix = f"r{round_}" if round_ else ""
        attempts = [
            Attempt(id_ := f"{name}-{member}{suffix}", name, task, derive_seed(self.seed, id_), member)
            for name, task in wanted.items()
            for member in range(self.settings.group_size)
        ]
        groups: dict[str, list[Trajectory]] = {name: [] for name in wanted}
        trajectories = self.runner.run(attempts)
        rewarded = (with_reward(trajectory, self.settings, self.reward) for trajectory in trajectories)
        for trajectory in observed(rewarded, callback):
            groups[trajectory.group].append(trajectory)
        return {name: tuple(sorted(group, key=lambda trajectory: trajectory.id)) for name, group in groups.items()}

    def _next_tasks(self, count: int) -> list[Task]:
        positions = range(self.drawn, self.drawn + count)
        self.drawn += count
        return [self.tasks[self._passes[position]] for position in positions]


def load_reward(name: str, trust: Collection[str]) -> RewardFunction | None:
    """Import the reward function that `collect.reward` names; None if it names none.

    Raises:
        TrustError: The function is not trusted.
        EnvError: It does not exist, or is not marked with `seeupo.reward_function`.
    """
    if name in REWARDS:
        return None
    check_trust([name], trust)
    function: RewardFunction = resolve(name, Role.REWARD)
    return function


def with_reward(
    trajectory: Trajectory, settings: CollectSettings, function: RewardFunction | None = None
) -> Trajectory:
    """Return the trajectory with the reward that is trained on: that of `function` or the score, with its discount."""
    if trajectory.failure is not None:
        return trajectory
    outcome = trajectory.reward if function is None else _checked_reward(settings.reward, function, trajectory)
    last = max(0, len(trajectory.turns) - 1)
    reward = settings.discount**last * outcome
    if settings.reward != "score_and_steps":
        return replace(trajectory, reward=reward)
    reward += sum(settings.discount**turn.index * turn.reward for turn in trajectory.turns)
    return replace(trajectory, reward=reward, outcome=outcome)


def _checked_reward(name: str, function: RewardFunction, trajectory: Trajectory) -> float:
    try:
        value = function(trajectory)
    except Exception as error:  # a function of the user may raise anything
        problem = f"collect.reward = {name!r} failed on {trajectory.id}: {explain_exception(error)}"
        raise TrainingError(*problem.split("\n")) from error
    if (reward := finite_number(value)) is None:
        raise TrainingError(f"collect.reward = {name!r} returned {value!r} for {trajectory.id}; expected a number")
    return reward
