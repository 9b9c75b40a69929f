"""What an iteration learns from: groups of trajectories of the same task, sampled until they are whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from seeupo.agents.runner import Attempt, Runner
from seeupo.training.failures import TrainingError
from seeupo.training.passes import Passes
from seeupo.training.recipe import CollectSettings, RewardShape
from seeupo.training.seeds import seed_of
from seeupo.types import Status, Task, Trajectory

REPEATS = 3
"""Saying the same thing so many times in a row counts as repetition."""


@dataclass
class Collected:
    """Whole groups of an iteration, in a fixed order, with their official scores.

    Attributes:
        groups: by name.
        resampled: groups that were sampled again because the infrastructure had failed an episode of theirs.
        replaced: groups that were replaced because their rewards were all equal.
        dropped: groups that the infrastructure failed again and again.
        failed_episodes: that the infrastructure failed, in all rounds; `failure` is the last one's.
    """

    groups: dict[str, tuple[Trajectory, ...]] = field(default_factory=dict)
    resampled: int = 0
    replaced: int = 0
    dropped: int = 0
    failed_episodes: int = 0
    failure: str = ""

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for name in sorted(self.groups) for trajectory in self.groups[name]]


class Collector:
    """Draws tasks and lets the policy attempt each of them several times.

    Attributes:
        drawn: how many tasks have been drawn since the run began. All tasks come once, in random order, before one
            comes again.
    """

    def __init__(
        self,
        runner: Runner,
        tasks: Sequence[Task],
        settings: CollectSettings,
        *,
        seed: int,
        heard: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.runner, self.tasks, self.settings, self.seed, self.heard = runner, tasks, settings, seed, heard
        self.drawn = 0
        self._passes = Passes(len(tasks), f"{seed}/tasks")

    def collect(self, iteration: int) -> Collected:
        """Sample the groups of an iteration; the same iteration and `drawn` give the same attempts."""
        collected = Collected()
        names = [f"{iteration:05d}-{number:03d}" for number in range(self.settings.tasks)]
        self._sample_whole(names, collected)
        for round_ in range(1, self.settings.equal_rounds + 1):
            equal = [name for name, group in collected.groups.items() if has_equal_rewards(group)]
            for name in equal:
                del collected.groups[name]
            collected.replaced += len(equal)
            self._sample_whole([f"{name.partition('~')[0]}~{round_}" for name in equal], collected)
        if not collected.groups:
            raise TrainingError(
                f"no group of iteration {iteration} came out whole, in {self.settings.failed_rounds + 1} rounds; "
                f"the last failure: {collected.failure}"
            )
        return collected

    def _sample_whole(self, names: Sequence[str], collected: Collected) -> None:
        """Add a group of the next task for each name; one that the infrastructure fails is sampled again."""
        missing = dict(zip(names, self._draw(len(names)), strict=True))
        for round_ in range(self.settings.failed_rounds + 1):
            collected.resampled += len(missing) if round_ else 0
            for name, group in self._sample(missing, round_).items():
                lost = [trajectory for trajectory in group if trajectory.status is Status.FAILED]
                if lost:
                    collected.failed_episodes += len(lost)
                    collected.failure = lost[0].texts[-1]
                else:
                    collected.groups[name] = group
                    del missing[name]
            if not missing:
                return
        collected.dropped += len(missing)

    def _sample(self, wanted: Mapping[str, Task], round_: int) -> dict[str, tuple[Trajectory, ...]]:
        suffix = f"r{round_}" if round_ else ""
        attempts = [
            Attempt(f"{name}-{member}{suffix}", name, task, seed_of(self.seed, f"{name}-{member}{suffix}"))
            for name, task in wanted.items()
            for member in range(self.settings.group_size)
        ]
        found: dict[str, list[Trajectory]] = {name: [] for name in wanted}
        for done, trajectory in enumerate(self.runner.run(attempts), 1):
            found[trajectory.group].append(trajectory)
            self.heard(done)
        return {name: tuple(sorted(group, key=lambda each: each.id)) for name, group in found.items()}

    def _draw(self, count: int) -> list[Task]:
        places = range(self.drawn, self.drawn + count)
        self.drawn += count
        return [self.tasks[self._passes[place]] for place in places]


def has_equal_rewards(group: Iterable[Trajectory]) -> bool:
    return len({trajectory.reward for trajectory in group}) <= 1


def shaped(trajectory: Trajectory, shape: RewardShape) -> Trajectory:
    """The trajectory with the reward that is trained on."""
    if shape == "none":
        return trajectory
    if trajectory.reward == 1.0:
        return replace(trajectory, reward=1.5)
    said = [sample.action_ids for sample in trajectory.samples]
    stuck = any(len(set(said[first : first + REPEATS])) == 1 for first in range(len(said) - REPEATS + 1))
    return replace(trajectory, reward=-1.0 if stuck else 0.5 * trajectory.reward)
