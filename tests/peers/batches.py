"""Random batches in both formats: trajectories for us, padded rows with a mask for a peer.

A trajectory is one row: the actions of its turns with observations between them, then padding. Log-probs come from
tables of logits, one before the first step and one after it, so that the ratios of the second step are far from 1.
Observations and padding hold random values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seeupo.types import StopReason, Trajectory, Turn, TurnKey

VOCABULARY = 5


@dataclass(frozen=True, kw_only=True)
class RandomBatch:
    """N trajectories as rows of L tokens.

    Attributes:
        columns: Position of each turn's action in its trajectory's row, by turn key.
        tokens: Token ids [N, L].
        mask: [N, L], 1 at action tokens.
        before: Logits [N, L, V] of theta_k.
        after: Logits of the policy after the first step.
        reference: Logits of the reference policy.
        values: Values [N, L] of the critic.
        moved_values: Values [N, L] after the critic's first step.
        end_values: Values [N] after the last token.
    """

    trajectories: tuple[Trajectory, ...]
    columns: Mapping[TurnKey, slice]
    tokens: Tensor
    mask: Tensor
    before: Tensor
    after: Tensor
    reference: Tensor
    values: Tensor
    moved_values: Tensor
    end_values: Tensor

    @property
    def rewards(self) -> Tensor:
        return torch.tensor([trajectory.reward for trajectory in self.trajectories], dtype=self.before.dtype)

    @property
    def groups(self) -> list[str]:
        return [trajectory.group for trajectory in self.trajectories]

    @property
    def row(self) -> dict[str, int]:
        """Return the row of each trajectory, by id."""
        return {trajectory.id: number for number, trajectory in enumerate(self.trajectories)}

    def logprobs(self, logits: Tensor) -> Tensor:
        """Return log-probs [N, L] of the tokens."""
        return logits.log_softmax(-1).gather(-1, self.tokens[..., None])[..., 0]

    def entropies(self, logits: Tensor) -> Tensor:
        """Return entropies [N, L] of the next token's distribution."""
        logprobs = logits.log_softmax(-1)
        return -(logprobs.exp() * logprobs).sum(-1)

    def at_last_action(self, numbers: Tensor) -> Tensor:
        """Return numbers [N] at each row's last action token (or first token), 0 elsewhere: [N, L]."""
        last = (self.mask * torch.arange(1, self.mask.shape[1] + 1)).argmax(1)
        return torch.zeros_like(self.mask).scatter(1, last[:, None], numbers.to(self.mask)[:, None])

    def over_rows(self, rows: Mapping[TurnKey, Tensor]) -> Tensor:
        """Return values of each turn's tokens as rows [N, L], 0 elsewhere."""
        table = torch.zeros_like(self.mask)
        for (name, turn), values in rows.items():
            table[self.row[name], self.columns[name, turn]] = values.to(table)
        return table

    def turns(self) -> tuple[Tensor, Tensor]:
        """Return every turn as a separate row: the row [S] of its trajectory, and a mask [S, L] of its action."""
        numbers = torch.tensor([self.row[name] for name, _ in self.columns])
        mask = self.mask.new_zeros(len(self.columns), self.mask.shape[1])
        for place, columns in enumerate(self.columns.values()):
            mask[place, columns] = 1
        return numbers, mask

    def group_deviation(self) -> Tensor:
        """Return the population standard deviation [N] of each trajectory's group; exactly 0 for equal rewards."""
        found = self.rewards.new_zeros(len(self.rewards))
        for group in dict.fromkeys(self.groups):
            members = [n for n, other in enumerate(self.groups) if other == group]
            rewards = self.rewards[members]
            found[members] = 0 * rewards[0] if (rewards == rewards[0]).all() else rewards.std(correction=0)
        return found

    def group_sizes(self) -> Tensor:
        return torch.tensor([self.groups.count(group) for group in self.groups])


def random_batch(
    seed: int,
    dtype: torch.dtype,
    *,
    sizes: Iterable[int] = (4, 3, 4, 2),
    equal: Sequence[int] = (1,),
    max_turns: int = 1,
    lengths: tuple[int, int] = (1, 7),
    empty: bool = False,
    truncated: bool = False,
) -> RandomBatch:
    """Return a batch with groups of these sizes; those in `equal` have equal rewards.

    With `empty` the last trajectory of the first group has no actions; with `truncated` every second one hit a limit.
    """
    generator = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    trajectories, columns = [], {}
    for group, size in enumerate(sizes):
        for member in range(size):
            name = f"{group}.{member}"
            num_turns = 0 if empty and (group, member) == (0, size - 1) else whole(1, max_turns)
            start, turns = 0, []
            for t in range(num_turns):
                length = whole(*lengths)
                columns[name, t] = slice(start, start + length)
                turns.append(Turn(name, t, (0,), (0,) * length))
                start += length + whole(1, 3)  # an observation of one to three tokens
            # 0.1 has no exact binary form, so the mean of equal rewards may differ from them.
            reward = 0.1 if group in equal else float(normal(())) if group % 2 else float(whole(0, 1) or member == 0)
            stop = StopReason.TURN_LIMIT if truncated and member % 2 else StopReason.GOAL
            trajectories.append(Trajectory(name, str(group), str(group), tuple(turns), reward, stop=stop))

    longest = max(piece.stop for piece in columns.values()) + 2
    shape = (len(trajectories), longest)
    mask = torch.zeros(shape, dtype=dtype)
    for (name, _), piece in columns.items():
        mask[[t.id for t in trajectories].index(name), piece] = 1

    def table(*base: Tensor, spread: float, outside: float) -> Tensor:
        """Return normal numbers, with another spread outside the mask."""
        inside = mask.bool() if not base or base[0].dim() == 2 else mask.bool()[..., None]
        drawn = normal(*(base[0].shape if base else shape))
        return torch.where(inside, sum(base) + spread * drawn, outside * drawn).to(dtype)

    zero = torch.zeros(*shape, VOCABULARY, dtype=torch.float64)
    before = table(zero, spread=1.0, outside=5.0)
    values = table(spread=0.5, outside=100.0)
    return RandomBatch(
        trajectories=tuple(trajectories),
        columns=columns,
        tokens=torch.randint(VOCABULARY, shape, generator=generator),
        mask=mask,
        before=before,
        after=table(before.double(), spread=0.5, outside=5.0),
        reference=table(before.double(), spread=0.5, outside=5.0),
        values=values,
        moved_values=table(values.double(), spread=0.3, outside=100.0),
        end_values=normal(len(trajectories)).to(dtype),
    )
