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
from seeupo.types import Sample, SampleKey, Status, Trajectory


class Batch:
    """The trajectories of one iteration.

    Attributes:
        trajectories: as given; their place is their number.
        pools: D_1 ... D_T; pool t holds each trajectory's sample of turn t. A trajectory without turn t is not in it.
        samples: of all trajectories, trajectory by trajectory; only those with tokens, as others have nothing to learn.
        turns: the same, per trajectory id.
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
        self.pools: list[list[Sample]] = [[] for _ in range(max(len(t.samples) for t in trajectories))]
        for trajectory in trajectories:
            for name in ("reward", "multiplicity"):
                check_number(f"{name} of trajectory {trajectory.id}", getattr(trajectory, name))
            if not math.isfinite(trajectory.reward):
                raise ValueError(f"reward of trajectory {trajectory.id} is {trajectory.reward}; it must be finite")
            if not 0 < (multiplicity := trajectory.multiplicity) < math.inf:
                raise ValueError(
                    f"multiplicity of trajectory {trajectory.id} is {multiplicity}; it must be finite and above 0"
                )
            if trajectory.status != Status.OK:
                raise ValueError(f"trajectory {trajectory.id} has failed; sample its group again, do not score it")
            for turn, sample in enumerate(trajectory.samples):
                if sample.key != (trajectory.id, turn):
                    raise ValueError(f"sample {turn} of trajectory {trajectory.id} calls itself {sample.key}")
                self.pools[turn].append(sample)
        self.turns = {t.id: tuple(sample for sample in t.samples if sample.action_ids) for t in trajectories}
        self.samples = [sample for samples in self.turns.values() for sample in samples]
        self.counts = torch.tensor(list(self.multiplicities.values()), dtype=torch.float64)
        self.action_tokens = {
            name: sum(len(sample.action_ids) for sample in samples) for name, samples in self.turns.items()
        }

    def members(self, samples: Sequence[Sample]) -> Tensor:
        """The numbers [n] of the trajectories that the samples belong to."""
        return torch.tensor([self._numbers[sample.trajectory] for sample in samples], dtype=torch.long)

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
                    "sample at least 2 (collect.group_size)"
                )
        for name, count in self.multiplicities.items():
            if count != 1:
                raise ValueError(
                    f"trajectory {name} stands for {count:g}; leaving one out needs each trajectory by itself"
                )

    def by_id(self, values: Tensor) -> dict[str, float]:
        """Values [N] of trajectories, to be looked up by id."""
        return dict(zip(self.multiplicities, values.tolist(), strict=True))

    def per_sample(self, samples: Sequence[Sample], values: Tensor) -> dict[SampleKey, float]:
        """Values [N] of trajectories for each of their samples."""
        of = values[self.members(samples)].tolist()
        return {sample.key: value for sample, value in zip(samples, of, strict=True)}

    def per_token(self, samples: Sequence[Sample], values: Tensor) -> dict[SampleKey, Tensor]:
        """Values [N] of trajectories for each token [len(action)] of their samples."""
        of = values[self.members(samples)]
        return {sample.key: value.expand(len(sample.action_ids)) for sample, value in zip(samples, of, strict=True)}

    def minibatches(
        self, samples: Sequence[Sample], count: int, generator: torch.Generator | None
    ) -> Iterator[tuple[list[Sample], float]]:
        """The samples in `count` random parts, each with its normaliser; parts without samples are left out.

        It is the trajectories that are split, so a part's normaliser also counts those that have no sample here.
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
            if batch := [sample for sample in samples if sample.trajectory in chosen]:
                yield batch, sum(chosen.values())


LogProbs = Mapping[SampleKey, Tensor]
"""Log-probs [len(action)] of actions, looked up by (trajectory, turn)."""


def by_key(samples: Sequence[Sample], rows: Sequence[Tensor]) -> dict[SampleKey, Tensor]:
    """What an engine returned for the samples, to be looked up by (trajectory, turn)."""
    return {sample.key: row for sample, row in zip(samples, rows, strict=True)}


def padded(samples: Sequence[Sample], logprobs: LogProbs) -> Tensor:
    """Log-probs of the samples as one tensor [N, L], padded on the right."""
    return pad_sequence([logprobs[sample.key] for sample in samples], batch_first=True)


def action_mask(samples: Sequence[Sample]) -> Tensor:
    """The one mask [N, L] of the samples' action tokens."""
    return length_mask(torch.tensor([len(sample.action_ids) for sample in samples], dtype=torch.long))
