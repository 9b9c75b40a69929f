"""What is maximised: clipped ratios of tokens, of turns or of whole trajectories, as picklable functions.

Everything is looked up by the turn's key, so that an engine may permute and split the turns as it likes. Log-probs
come padded to [N, L]; a value per turn goes back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from seeupo.algorithms.batch import LogProbs, action_mask, padded
from seeupo.core import clip_binds, clipped_objective, k3, masked_mean, sequence_log_ratio
from seeupo.core.checks import Clip
from seeupo.types import Turn, TurnKey

Ratio = Literal["length_normalized", "product"]


def action_log_ratio(turns: Sequence[Turn], new: LogProbs, old: LogProbs, ratio: Ratio) -> Tensor:
    """log r [n] of the turns' actions, in float64, from log-probs outside any gradient."""
    return sequence_log_ratio(
        padded(turns, new).double(),
        padded(turns, old).double(),
        action_mask(turns),
        length_normalize=ratio == "length_normalized",
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of n turns: their weights, log r, and the share of each action that the clip holds, all [n]."""

    weights: Tensor
    log_ratio: Tensor
    clipped: Tensor


@dataclass(frozen=True, kw_only=True)
class RatioObjective(ABC):
    """A clipped ratio - kl_coef * KL + entropy_coef * entropy, per turn.

    Attributes:
        old: log-probs under the policy that sampled.
        multiplicities: per trajectory id, how many trajectories it stands for.
        clip: (low, high), or None.
        reference: log-probs under the reference policy; needed when kl_coef is not 0.
        kl_coef, entropy_coef: of the k3 estimate and the entropy, both means over the tokens of what the objective
            takes as one: a turn's action, or all actions of a trajectory.
    """

    old: LogProbs
    multiplicities: Mapping[str, float]
    clip: Clip | None = (0.2, 0.2)
    reference: LogProbs = field(default_factory=dict)
    kl_coef: float = 0.0
    entropy_coef: float = 0.0

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef != 0

    @abstractmethod
    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, turns: Sequence[Turn]) -> Tensor:
        """The clipped part [N]."""

    @abstractmethod
    def token_weight(self, turn: Turn) -> float:
        """What each token of the turn counts in the KL and entropy terms."""

    @abstractmethod
    def outcome(self, turns: Sequence[Turn], new: LogProbs) -> Outcome:
        """What has become of the turns with new log-probs."""

    def at(self, current: Callable[[Sequence[Turn]], LogProbs], turns: Sequence[Turn]) -> Self:
        """The objective for a step on these turns, after others; `current` gives log-probs as they are now."""
        return self

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, turns: Sequence[Turn]) -> Tensor:
        mask_NL = action_mask(turns).to(logprobs_NL.device)
        multiplicities_N = logprobs_NL.new_tensor([self.multiplicities[turn.trajectory] for turn in turns])
        weights_N = logprobs_NL.new_tensor([self.token_weight(turn) for turn in turns])
        value_N = self.clipped(logprobs_NL, mask_NL, turns)
        if self.kl_coef:
            reference_NL = padded(turns, self.reference).to(logprobs_NL)
            # Rubbish under the mask is replaced before the exponential: behind it, 0 * nan is nan in the backward pass.
            kl_NL = k3(torch.where(mask_NL, logprobs_NL, 0.0), torch.where(mask_NL, reference_NL, 0.0))
            value_N = value_N - self.kl_coef * weights_N * torch.where(mask_NL, kl_NL, 0.0).sum(1)
        if self.entropy_coef:
            if entropies_NL is None:
                raise ValueError("entropy_coef is set but the engine passed no entropies")
            value_N = value_N + self.entropy_coef * weights_N * torch.where(mask_NL, entropies_NL, 0.0).sum(1)
        return multiplicities_N * value_N


@dataclass(frozen=True, kw_only=True)
class SequenceObjective(RatioObjective):
    """min(r A, clip(r) A) with r of the whole action of a turn.

    Attributes:
        advantages: what the action's ratio is multiplied with: M in SeeUPO.
        ratio: r as the geometric mean of the token ratios ("length_normalized") or as their "product".
    """

    advantages: Mapping[TurnKey, float]
    ratio: Ratio = "length_normalized"

    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, turns: Sequence[Turn]) -> Tensor:
        old_NL = padded(turns, self.old).to(logprobs_NL)
        advantages_N = logprobs_NL.new_tensor([self.advantages[turn.key] for turn in turns])
        length_normalize = self.ratio == "length_normalized"
        log_ratio_N = sequence_log_ratio(logprobs_NL, old_NL, mask_NL, length_normalize=length_normalize)
        return clipped_objective(log_ratio_N, advantages_N, clip=self.clip)

    def token_weight(self, turn: Turn) -> float:
        return 1 / max(1, len(turn.action_ids))

    def outcome(self, turns: Sequence[Turn], new: LogProbs) -> Outcome:
        weights = torch.tensor([self.advantages[turn.key] for turn in turns], dtype=torch.float64)
        log_ratio = action_log_ratio(turns, new, self.old, self.ratio)
        return Outcome(
            weights=weights, log_ratio=log_ratio, clipped=clip_binds(log_ratio, weights, clip=self.clip).double()
        )


@dataclass(frozen=True, kw_only=True)
class TokenObjective(RatioObjective):
    """The sum over an action's tokens of min(r A, clip(r) A), with r and A of each token, times a scale.

    Attributes:
        advantages: [len(action)] per turn.
        scales: per trajectory id: one divided by its length makes the sum over a trajectory's actions a mean.
    """

    advantages: Mapping[TurnKey, Tensor]
    scales: Mapping[str, float]

    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, turns: Sequence[Turn]) -> Tensor:
        old_NL = padded(turns, self.old).to(logprobs_NL)
        log_ratio_NL = torch.where(mask_NL, logprobs_NL, 0.0) - torch.where(mask_NL, old_NL, 0.0)
        advantages_NL = padded(turns, self.advantages).to(logprobs_NL)
        value_NL = clipped_objective(log_ratio_NL.flatten(), advantages_NL.flatten(), clip=self.clip)
        scales_N = logprobs_NL.new_tensor([self.scales[turn.trajectory] for turn in turns])
        return scales_N * value_NL.view_as(logprobs_NL).sum(1)

    def token_weight(self, turn: Turn) -> float:
        return self.scales[turn.trajectory]

    def outcome(self, turns: Sequence[Turn], new: LogProbs) -> Outcome:
        mask_NL, advantages_NL = action_mask(turns), padded(turns, self.advantages).double()
        log_ratio_NL = torch.where(mask_NL, padded(turns, new).double() - padded(turns, self.old).double(), 0.0)
        binds_NL = clip_binds(log_ratio_NL.flatten(), advantages_NL.flatten(), clip=self.clip).view_as(mask_NL)
        return Outcome(
            weights=masked_mean(advantages_NL, mask_NL),
            log_ratio=masked_mean(log_ratio_NL, mask_NL),
            clipped=masked_mean(binds_NL.double(), mask_NL),
        )


@dataclass(frozen=True, kw_only=True)
class TrajectoryObjective(RatioObjective):
    """min(r A, clip(r) A) with one ratio r of all actions of a trajectory.

    An engine may see the turns of a trajectory at different times. Each of them therefore takes the log-ratio of the
    others as a number, as it stands before the step: the gradients of the turns then add up to that of the whole.

    Attributes:
        advantages: per trajectory id.
        turns: per trajectory id, its turns.
        ratio: "length_normalized" by the number of tokens of all its actions, or their "product".
        elsewhere: per turn, the log-ratio of the trajectory's other turns; none is 0, as before the first step.
    """

    advantages: Mapping[str, float]
    turns: Mapping[str, Sequence[Turn]]
    ratio: Ratio = "length_normalized"
    elsewhere: Mapping[TurnKey, float] = field(default_factory=dict)

    def at(self, current: Callable[[Sequence[Turn]], LogProbs], turns: Sequence[Turn]) -> Self:
        names = dict.fromkeys(turn.trajectory for turn in turns)
        whole = [turn for name in names for turn in self.turns[name]]
        of_turn = self._log_ratios(whole, current(whole))
        of_all = {name: sum(of_turn[turn.key] for turn in self.turns[name]) for name in names}
        return replace(self, elsewhere={turn.key: of_all[turn.trajectory] - of_turn[turn.key] for turn in turns})

    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, turns: Sequence[Turn]) -> Tensor:
        old_NL = padded(turns, self.old).to(logprobs_NL)
        own_N = sequence_log_ratio(logprobs_NL, old_NL, mask_NL, length_normalize=False)
        elsewhere_N = logprobs_NL.new_tensor([self.elsewhere.get(turn.key, 0.0) for turn in turns])
        lengths_N = logprobs_NL.new_tensor([self._length(turn.trajectory) for turn in turns])
        advantages_N = logprobs_NL.new_tensor([self.advantages[turn.trajectory] for turn in turns])
        value_N = clipped_objective((own_N + elsewhere_N) / lengths_N, advantages_N, clip=self.clip)
        # Every turn has the gradient of its own part, and all of them together one trajectory's value.
        turns_N = logprobs_NL.new_tensor([len(self.turns[turn.trajectory]) for turn in turns])
        return value_N - (1 - 1 / turns_N) * value_N.detach()

    def token_weight(self, turn: Turn) -> float:
        return 1 / max(1, self._tokens(turn.trajectory))

    def outcome(self, turns: Sequence[Turn], new: LogProbs) -> Outcome:
        whole = [turn for name in {s.trajectory: None for s in turns} for turn in self.turns[name]]
        of_turn = self._log_ratios(whole, new)
        log_ratio = torch.tensor(
            [
                sum(of_turn[each.key] for each in self.turns[turn.trajectory]) / self._length(turn.trajectory)
                for turn in turns
            ],
            dtype=torch.float64,
        )
        weights = torch.tensor([self.advantages[turn.trajectory] for turn in turns], dtype=torch.float64)
        return Outcome(
            weights=weights, log_ratio=log_ratio, clipped=clip_binds(log_ratio, weights, clip=self.clip).double()
        )

    def _length(self, trajectory: str) -> int:
        return 1 if self.ratio == "product" else max(1, self._tokens(trajectory))

    def _tokens(self, trajectory: str) -> int:
        return sum(len(turn.action_ids) for turn in self.turns[trajectory])

    def _log_ratios(self, turns: Sequence[Turn], new: LogProbs) -> dict[TurnKey, float]:
        found = action_log_ratio(turns, new, self.old, "product").tolist()
        return {turn.key: value for turn, value in zip(turns, found, strict=True)}
