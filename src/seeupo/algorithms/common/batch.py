"""The trajectories of one iteration, indexed by id and sorted into turn pools."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seeupo.core.advantages import Baseline, Normalize, group_advantages
from seeupo.core.ratios import length_mask
from seeupo.protocols import TrainEngine
from seeupo.types import ON_POLICY, AgentId, Behavior, Trajectory, Turn, TurnKey
from seeupo.utils.option_checks import check_number


class Batch:
    """The trajectories of one iteration.

    Attributes:
        trajectories: The N trajectories; tensors [N] are in this order.
        behavior: The policy that sampled them.
        pools: Turn pools D_1 ... D_T: pool t holds turn t of every trajectory that has one.
        role_indices: Role of each turn, and its index among the trajectory's turns of this role, by turn key.
        turns: All turns with action tokens, trajectory by trajectory; a turn without tokens has no gradient.
        turns_of: The same turns, by trajectory id.
        multiplicities: Number of trajectories that each one stands for, by id.
        counts: The multiplicities as a tensor [N].
        action_tokens: Number of action tokens of all turns, by trajectory id.
    """

    def __init__(self, trajectories: Sequence[Trajectory], behavior: Behavior = ON_POLICY) -> None:
        if not trajectories:
            raise ValueError("trajectories = []: an update needs at least one trajectory")
        self.trajectories, self.behavior = tuple(trajectories), behavior
        self.multiplicities = {trajectory.id: trajectory.multiplicity for trajectory in trajectories}
        self._indices = {trajectory.id: index for index, trajectory in enumerate(trajectories)}
        if len(self._indices) < len(trajectories):
            raise ValueError("two trajectories have the same id; ids must be unique within an iteration")
        for trajectory in trajectories:
            _check_trainable(trajectory)
        longest = max(len(trajectory.turns) for trajectory in trajectories)
        self.pools = [[tau.turns[t] for tau in trajectories if len(tau.turns) > t] for t in range(longest)]
        self.role_indices: dict[TurnKey, tuple[str, int]] = {}
        for trajectory in trajectories:
            counts = Counter[str]()
            for turn in trajectory.turns:
                self.role_indices[turn.key] = turn.agent_role, counts[turn.agent_role]
                counts[turn.agent_role] += 1
        self.turns_of = {tau.id: tuple(turn for turn in tau.turns if turn.action_ids) for tau in trajectories}
        self.turns = [turn for turns in self.turns_of.values() for turn in turns]
        self.counts = torch.tensor(list(self.multiplicities.values()), dtype=torch.float64)
        self.action_tokens = {
            name: sum(len(turn.action_ids) for turn in turns) for name, turns in self.turns_of.items()
        }

    def agent_pools(self, turns_per_agent: int) -> dict[AgentId, list[Turn]]:
        """Return the pools of virtual agents of k turns: agent a of a role takes its turns a k ... a k + k - 1.

        A pool holds these turns of every trajectory that has one of them, trajectory by trajectory. The pools are in
        the order of execution: by the median index of an agent's first turns, because parallel calls start in another
        order in each attempt, then by role. An agent never precedes an earlier one of its role.
        """
        pools: dict[tuple[str, int], list[Turn]] = {}
        for trajectory in self.trajectories:
            for turn in trajectory.turns:
                role, index = self.role_indices[turn.key]
                pools.setdefault((role, index // turns_per_agent), []).append(turn)
        starts: dict[tuple[str, int], float] = {}
        for role, number in sorted(pools):
            first = [turns[0].index for turns in by_trajectory(pools[role, number]).values()]
            starts[role, number] = max(median(first), starts.get((role, number - 1), 0))
        ordered = sorted(pools, key=lambda agent: (starts[agent], agent))
        return {f"{role}:{number}" if role else number: pools[role, number] for role, number in ordered}

    def members(self, turns: Sequence[Turn]) -> Tensor:
        """Return the index [n] of each turn's trajectory in the batch."""
        return torch.tensor([self._indices[turn.trajectory] for turn in turns], dtype=torch.long)

    def advantages(self, normalize: Normalize, baseline: Baseline, *, rewards: Sequence[float] | None = None) -> Tensor:
        """Return the group-relative advantage A [N] of each trajectory, in float64, or of these rewards instead."""
        if rewards is None:
            rewards = [trajectory.reward for trajectory in self.trajectories]
        if baseline == "leave_one_out":
            self._check_leave_one_out()
        label = {group: n for n, group in enumerate(dict.fromkeys(tau.group for tau in self.trajectories))}
        return group_advantages(
            torch.tensor(rewards, dtype=torch.float64),
            torch.tensor([label[trajectory.group] for trajectory in self.trajectories]),
            normalize=normalize,
            baseline=baseline,
            weights=None if (self.counts == 1).all() else self.counts,
        )

    def advantage_scale(self, normalize: Normalize, baseline: Baseline) -> float | None:
        """Return what `advantages` divides by; None if that differs from group to group."""
        if normalize == "none":
            return 1.0
        if normalize == "group":
            return None
        advantages = self.advantages("none", baseline)
        return float(((self.counts * advantages**2).sum() / self.counts.sum()).sqrt())

    def _check_leave_one_out(self) -> None:
        for name, size in Counter(trajectory.group for trajectory in self.trajectories).items():
            if size == 1:
                raise ValueError(
                    f"group {name} has one trajectory, but its baseline is the mean of the others; "
                    "set collect.group_size to 2 or more"
                )
        for name, count in self.multiplicities.items():
            if count != 1:
                raise ValueError(
                    f"multiplicity of trajectory {name} = {count:g}: leave-one-out baselines need a multiplicity of 1"
                )

    def by_id(self, values: Tensor) -> dict[str, float]:
        """Return values [N] of trajectories by trajectory id."""
        return dict(zip(self.multiplicities, values.tolist(), strict=True))

    def per_turn(self, turns: Sequence[Turn], values: Tensor) -> dict[TurnKey, float]:
        """Return values [N] of trajectories for each of their turns."""
        return dict(zip((turn.key for turn in turns), values[self.members(turns)].tolist(), strict=True))

    def per_token(self, turns: Sequence[Turn], values: Tensor) -> dict[TurnKey, Tensor]:
        """Return values [N] of trajectories for each token [len(action)] of their turns."""
        pairs = zip(turns, values[self.members(turns)], strict=True)
        return {turn.key: value.expand(len(turn.action_ids)) for turn, value in pairs}

    def minibatches(
        self, turns: Sequence[Turn], count: int, generator: torch.Generator | None
    ) -> Iterator[tuple[list[Turn], float]]:
        """Split the trajectories at random into `count` mini-batches; yield the given turns of each and its normalizer.

        The normalizer also counts trajectories without a given turn. Mini-batches without any turn are skipped.
        """
        names = sorted(self.multiplicities)  # ids are drawn, so the order of the trajectories does not matter
        if count == 1:
            parts = [torch.arange(len(names))]
        elif generator is None:
            raise ValueError(
                "generator = None: random mini-batches need a torch.Generator, so that a run can be repeated"
            )
        else:
            parts = list(torch.randperm(len(names), generator=generator).tensor_split(count))
        for part in parts:
            # A dict keeps the order, and with it the last digit of the sum, the same in every process.
            multiplicities = {names[index]: self.multiplicities[names[index]] for index in part.tolist()}
            if minibatch := [turn for turn in turns if turn.trajectory in multiplicities]:
                yield minibatch, sum(multiplicities.values())


def _check_trainable(trajectory: Trajectory) -> None:
    for name in ("reward", "multiplicity"):
        check_number(f"{name} of trajectory {trajectory.id}", getattr(trajectory, name))
    if not math.isfinite(trajectory.reward):
        raise ValueError(f"reward of trajectory {trajectory.id} = {trajectory.reward}: expected a finite number")
    if not 0 < trajectory.multiplicity < math.inf:
        raise ValueError(
            f"multiplicity of trajectory {trajectory.id} = {trajectory.multiplicity}: expected a finite number above 0"
        )
    if trajectory.failure is not None:
        raise ValueError(f"trajectory {trajectory.id} failed and has no score; sample its group again")
    for t, turn in enumerate(trajectory.turns):
        if turn.key != (trajectory.id, t):
            raise ValueError(f"turn {t} of trajectory {trajectory.id} has the key {turn.key}; expected its own")


LogProbs = Mapping[TurnKey, Tensor]
"""Log-probs [len(action)] of actions, by turn key (trajectory id, turn index)."""


def logprobs_by_key(
    engine: TrainEngine, turns: Sequence[Turn], policy: Literal["current", "reference"] = "current"
) -> dict[TurnKey, Tensor]:
    """Return log-probs of the turns' actions under the weights as they are now, or under the reference policy."""
    rows = engine.logprobs(turns, policy=policy) if turns else []
    return {turn.key: row for turn, row in zip(turns, rows, strict=True)}


def by_trajectory(turns: Sequence[Turn]) -> dict[str, list[Turn]]:
    """Return the turns by trajectory id, in order of appearance: for a virtual agent's pool, its joint actions."""
    actions: dict[str, list[Turn]] = {}
    for turn in turns:
        actions.setdefault(turn.trajectory, []).append(turn)
    return actions


def padded(turns: Sequence[Turn], logprobs: LogProbs) -> Tensor:
    """Return log-probs of the turns as one tensor [N, L], padded on the right."""
    return pad_sequence([logprobs[turn.key] for turn in turns], batch_first=True)


def action_mask(turns: Sequence[Turn]) -> Tensor:
    """Return the mask [N, L] of the turns' action tokens."""
    return length_mask(torch.tensor([len(turn.action_ids) for turn in turns], dtype=torch.long))
