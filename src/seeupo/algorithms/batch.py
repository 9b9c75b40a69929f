"""The trajectories of an iteration as algorithms need them: numbered, grouped, and sorted into turn pools."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seeupo.core import group_advantages, length_mask
from seeupo.core.advantages import Baseline, Normalize
from seeupo.core.checks import check_number
from seeupo.types import Trajectory, Turn, TurnKey


class Batch:
    """The trajectories of one iteration.

    Attributes:
        trajectories: as given; their place is their number.
        pools: D_1 ... D_T; pool t holds each trajectory's turn of turn t. A trajectory without turn t is not in it.
        turns: of all trajectories, trajectory by trajectory; only those with tokens, as others have nothing to learn.
        turns_of: the same, per trajectory id.
        multiplicities: per trajectory id, how many trajectories it stands for.
        counts: the same [N], by number.
        action_tokens: per trajectory id, of all its turns.
    """

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        if not trajectories:
            raise ValueError("there are no trajectories; an update needs at least one")
        self.trajectories = tuple(trajectories)
        self.multiplicities = {trajectory.id: trajectory.multiplicity for trajectory in trajectories}
        self._numbers = {trajectory.id: number for number, trajectory in enumerate(trajectories)}
        if len(self._numbers) < len(trajectories):
            raise ValueError("two trajectories have the same id; ids must be unique within an iteration")
        self.pools: list[list[Turn]] = [[] for _ in range(max(len(t.turns) for t in trajectories))]
        for trajectory in trajectories:
            for name in ("reward", "multiplicity"):
                check_number(f"{name} of trajectory {trajectory.id}", getattr(trajectory, name))
            if not math.isfinite(trajectory.reward):
                raise ValueError(f"reward of trajectory {trajectory.id} is {trajectory.reward}; it must be finite")
            if not 0 < (multiplicity := trajectory.multiplicity) < math.inf:
                raise ValueError(
                    f"multiplicity of trajectory {trajectory.id} is {multiplicity}; it must be finite and above 0"
                )
            if trajectory.failure is not None:
                raise ValueError(f"trajectory {trajectory.id} has failed; turn its group again, do not score it")
            for t, turn in enumerate(trajectory.turns):
                if turn.key != (trajectory.id, t):
                    raise ValueError(f"turn {t} of trajectory {trajectory.id} calls itself {turn.key}")
                self.pools[t].append(turn)
        self.turns_of = {t.id: tuple(turn for turn in t.turns if turn.action_ids) for t in trajectories}
        self.turns = [turn for turns in self.turns_of.values() for turn in turns]
        self.counts = torch.tensor(list(self.multiplicities.values()), dtype=torch.float64)
        self.action_tokens = {
            name: sum(len(turn.action_ids) for turn in turns) for name, turns in self.turns_of.items()
        }

    def members(self, turns: Sequence[Turn]) -> Tensor:
        """The numbers [n] of the trajectories that the turns belong to."""
        return torch.tensor([self._numbers[turn.trajectory] for turn in turns], dtype=torch.long)

    def advantages(self, normalize: Normalize, baseline: Baseline) -> Tensor:
        """The group-relative advantage A [N] of each trajectory, in float64."""
        if baseline == "leave_one_out":
            self._check_others()
        label = {group: n for n, group in enumerate(dict.fromkeys(t.group for t in self.trajectories))}
        return group_advantages(
            torch.tensor([trajectory.reward for trajectory in self.trajectories], dtype=torch.float64),
            torch.tensor([label[trajectory.group] for trajectory in self.trajectories]),
            normalize=normalize,
            baseline=baseline,
            weights=None if (self.counts == 1).all() else self.counts,
        )

    def _check_others(self) -> None:
        """Leaving one out needs others, each of them by itself."""
        for name, members in Counter(trajectory.group for trajectory in self.trajectories).items():
            if members == 1:
                raise ValueError(
                    f"group {name} has one trajectory, and its baseline is the mean of the others; "
                    "turn at least 2 (collect.group_size)"
                )
        for name, count in self.multiplicities.items():
            if count != 1:
                raise ValueError(
                    f"trajectory {name} stands for {count:g}; leaving one out needs each trajectory by itself"
                )

    def by_id(self, values: Tensor) -> dict[str, float]:
        """Values [N] of trajectories, to be looked up by id."""
        return dict(zip(self.multiplicities, values.tolist(), strict=True))

    def per_turn(self, turns: Sequence[Turn], values: Tensor) -> dict[TurnKey, float]:
        """Values [N] of trajectories for each of their turns."""
        of = values[self.members(turns)].tolist()
        return {turn.key: value for turn, value in zip(turns, of, strict=True)}

    def per_token(self, turns: Sequence[Turn], values: Tensor) -> dict[TurnKey, Tensor]:
        """Values [N] of trajectories for each token [len(action)] of their turns."""
        of = values[self.members(turns)]
        return {turn.key: value.expand(len(turn.action_ids)) for turn, value in zip(turns, of, strict=True)}

    def minibatches(
        self, turns: Sequence[Turn], count: int, generator: torch.Generator | None
    ) -> Iterator[tuple[list[Turn], float]]:
        """The turns in `count` random parts, each with its normaliser; parts without turns are left out.

        It is the trajectories that are split, so a part's normaliser also counts those that have no turn here.
        """
        names = sorted(self.multiplicities)  # it is ids that are drawn, whatever row they stand in
        if count == 1:
            parts = [torch.arange(len(names))]
        elif generator is None:
            raise ValueError("several mini-batches need a generator, so that the run can be repeated")
        else:
            parts = list(torch.randperm(len(names), generator=generator).tensor_split(count))
        for part in parts:
            # A dict keeps the order, and with it the last digit of the sum, the same in every process.
            chosen = {names[number]: self.multiplicities[names[number]] for number in part.tolist()}
            if batch := [turn for turn in turns if turn.trajectory in chosen]:
                yield batch, sum(chosen.values())


LogProbs = Mapping[TurnKey, Tensor]
"""Log-probs [len(action)] of actions, looked up by (trajectory, turn)."""


def by_key(turns: Sequence[Turn], rows: Sequence[Tensor]) -> dict[TurnKey, Tensor]:
    """What an engine returned for the turns, to be looked up by (trajectory, turn)."""
    return {turn.key: row for turn, row in zip(turns, rows, strict=True)}


def padded(turns: Sequence[Turn], logprobs: LogProbs) -> Tensor:
    """Log-probs of the turns as one tensor [N, L], padded on the right."""
    return pad_sequence([logprobs[turn.key] for turn in turns], batch_first=True)


def action_mask(turns: Sequence[Turn]) -> Tensor:
    """The one mask [N, L] of the turns' action tokens."""
    return length_mask(torch.tensor([len(turn.action_ids) for turn in turns], dtype=torch.long))
