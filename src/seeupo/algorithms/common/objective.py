"""Objectives: clipped ratios of tokens, turns or whole trajectories, as picklable functions of log-probs.

Everything is looked up by turn key, so that an engine may permute and split the turns. Suffixes of tensors: N turns,
L action tokens, padded on the right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seeupo.algorithms.common.batch import LogProbs, action_mask, logprobs_by_key, padded
from seeupo.config.option_types import Clip
from seeupo.core.ratios import clip_binds, clipped_objective, k3, length_mask, masked_mean, sequence_log_ratio
from seeupo.protocols import TrainEngine
from seeupo.types import Turn, TurnKey

Ratio = Literal["length_normalized", "product"]


def action_log_ratio(actions: Iterable[Sequence[Turn]], new: LogProbs, old: LogProbs, ratio: Ratio) -> Tensor:
    """Return log r [n] of actions of one or several turns each, in float64; the log-probs have no gradient."""
    actions = list(actions)

    def joined(logprobs: LogProbs) -> Tensor:
        rows = [torch.cat([logprobs[turn.key] for turn in turns]) for turns in actions]
        return pad_sequence(rows, batch_first=True).double()

    lengths = torch.tensor([sum(len(turn.action_ids) for turn in turns) for turns in actions], dtype=torch.long)
    return sequence_log_ratio(
        joined(new), joined(old), length_mask(lengths), length_normalize=ratio == "length_normalized"
    )


@dataclass(frozen=True, kw_only=True)
class UpdateEffect:
    """The effect of an update on n turns.

    Attributes:
        weights: Weights [n] that the actions were updated with: the carried advantage M in SeeUPO, A elsewhere.
        log_ratio: log r [n] after the update, as the algorithm defines r.
        clipped: Fraction [n] of each action's tokens whose clip is active; 0 or 1 if the action is clipped as a whole.
    """

    weights: Tensor
    log_ratio: Tensor
    clipped: Tensor


@dataclass(frozen=True, kw_only=True)
class RatioObjective(ABC):
    """Base class: clipped ratio - kl_coef * KL + entropy_coef * entropy, one value per turn.

    Attributes:
        old: Log-probs under theta_k, the policy that sampled.
        multiplicities: Number of trajectories that each one stands for, by trajectory id.
        clip: Clip range (low, high), or None.
        reference: Log-probs under the reference policy; needed if kl_coef is not 0.
        kl_coef: Weight of the k3 estimate of the KL, each token weighted by `token_weight`.
        entropy_coef: Weight of the entropy, each token weighted by `token_weight`.
        importance: Weights of the tokens' gradients [len(action)] by turn key; empty if all are 1. The value does not
            depend on them.
    """

    old: LogProbs
    multiplicities: Mapping[str, float]
    clip: Clip | None = (0.2, 0.2)
    reference: LogProbs = field(default_factory=dict)
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    importance: LogProbs = field(default_factory=dict)

    @property
    def needs_entropy(self) -> bool:
        """Whether the objective has an entropy term."""
        return self.entropy_coef != 0

    @abstractmethod
    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, turns: Sequence[Turn]) -> Tensor:
        """Return the clipped ratio term [N]."""

    @abstractmethod
    def token_weight(self, turn: Turn) -> float:
        """Return the weight of each of the turn's tokens in the KL and entropy terms."""

    @abstractmethod
    def effect(self, turns: Sequence[Turn], new: LogProbs) -> UpdateEffect:
        """Return the effect of an update that gave the turns new log-probs."""

    def for_step(self, engine: TrainEngine, turns: Sequence[Turn], moved: bool) -> Self:
        """Return the objective for a step of the engine on these turns; `moved` if its weights may not be theta_k."""
        return self

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, turns: Sequence[Turn]) -> Tensor:
        mask_NL = action_mask(turns).to(logprobs_NL.device)
        multiplicities_N = logprobs_NL.new_tensor([self.multiplicities[turn.trajectory] for turn in turns])
        weights_N = logprobs_NL.new_tensor([self.token_weight(turn) for turn in turns])
        if self.importance:
            # w log p + (1 - w) log p without gradient. Padding is replaced, because 0 * nan would be nan.
            importance_NL = padded(turns, self.importance).to(logprobs_NL)
            fixed_NL = torch.where(mask_NL, logprobs_NL.detach(), 0.0)
            logprobs_NL = fixed_NL + importance_NL * (torch.where(mask_NL, logprobs_NL, 0.0) - fixed_NL)
        value_N = self.clipped(logprobs_NL, mask_NL, turns)
        if self.kl_coef:
            reference_NL = padded(turns, self.reference).to(logprobs_NL)
            # Padding is replaced before the exponential: after it, 0 * nan would be nan in the backward pass.
            kl_NL = k3(torch.where(mask_NL, logprobs_NL, 0.0), torch.where(mask_NL, reference_NL, 0.0))
            value_N = value_N - self.kl_coef * weights_N * torch.where(mask_NL, kl_NL, 0.0).sum(1)
        if self.entropy_coef:
            if entropies_NL is None:
                raise ValueError("entropies_NL = None: entropy_coef is set, so the engine must pass entropies")
            value_N = value_N + self.entropy_coef * weights_N * torch.where(mask_NL, entropies_NL, 0.0).sum(1)
        return multiplicities_N * value_N


@dataclass(frozen=True, kw_only=True)
class SequenceObjective(RatioObjective):
    """min(r A, clip(r) A) with one ratio r per turn, of its whole action.

    Attributes:
        advantages: A by turn key: the carried advantage M in SeeUPO.
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

    def effect(self, turns: Sequence[Turn], new: LogProbs) -> UpdateEffect:
        weights = torch.tensor([self.advantages[turn.key] for turn in turns], dtype=torch.float64)
        log_ratio = action_log_ratio([(turn,) for turn in turns], new, self.old, self.ratio)
        return UpdateEffect(
            weights=weights, log_ratio=log_ratio, clipped=clip_binds(log_ratio, weights, clip=self.clip).double()
        )


@dataclass(frozen=True, kw_only=True)
class TokenObjective(RatioObjective):
    """Sum over an action's tokens of min(r A, clip(r) A), with r and A per token, times a scale.

    Attributes:
        advantages: A [len(action)] by turn key.
        scales: Scale by trajectory id; 1 / length turns the sum over a trajectory's tokens into a mean.
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

    def effect(self, turns: Sequence[Turn], new: LogProbs) -> UpdateEffect:
        mask_NL, advantages_NL = action_mask(turns), padded(turns, self.advantages).double()
        log_ratio_NL = torch.where(mask_NL, padded(turns, new).double() - padded(turns, self.old).double(), 0.0)
        binds_NL = clip_binds(log_ratio_NL.flatten(), advantages_NL.flatten(), clip=self.clip).view_as(mask_NL)
        return UpdateEffect(
            weights=masked_mean(advantages_NL, mask_NL),
            log_ratio=masked_mean(log_ratio_NL, mask_NL),
            clipped=masked_mean(binds_NL.double(), mask_NL),
        )


@dataclass(frozen=True, kw_only=True)
class TrajectoryObjective(RatioObjective):
    """min(r A, clip(r) A) with one ratio r per trajectory, of the actions of all given turns.

    An engine may compute the turns of a trajectory in different micro-batches. Each turn therefore treats the log-ratio
    of the other turns, as of before the step, as a constant: the gradients of the turns add up to the exact gradient.

    Attributes:
        advantages: A by trajectory id.
        turns: The trajectory's turns by trajectory id; in SeeUPO those of one virtual agent.
        ratio: r as the geometric mean of the token ratios ("length_normalized") or as their "product".
        other_log_ratio: Log-ratio of the trajectory's other turns by turn key; 0 if absent, as before the first step.
    """

    advantages: Mapping[str, float]
    turns: Mapping[str, Sequence[Turn]]
    ratio: Ratio = "length_normalized"
    other_log_ratio: Mapping[TurnKey, float] = field(default_factory=dict)

    def for_step(self, engine: TrainEngine, turns: Sequence[Turn], moved: bool) -> Self:
        names = dict.fromkeys(turn.trajectory for turn in turns)
        if not moved or all(len(self.turns[name]) == 1 for name in names):
            return self  # all ratios are 1, or no trajectory has other turns
        all_turns = [turn for name in names for turn in self.turns[name]]
        log_ratio = self._log_ratios(all_turns, logprobs_by_key(engine, all_turns))
        totals = {name: sum(log_ratio[turn.key] for turn in self.turns[name]) for name in names}
        others = {turn.key: totals[turn.trajectory] - log_ratio[turn.key] for turn in turns}
        return replace(self, other_log_ratio=others)

    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, turns: Sequence[Turn]) -> Tensor:
        old_NL = padded(turns, self.old).to(logprobs_NL)
        own_N = sequence_log_ratio(logprobs_NL, old_NL, mask_NL, length_normalize=False)
        other_N = logprobs_NL.new_tensor([self.other_log_ratio.get(turn.key, 0.0) for turn in turns])
        lengths_N = logprobs_NL.new_tensor([self._length(turn.trajectory) for turn in turns])
        advantages_N = logprobs_NL.new_tensor([self.advantages[turn.trajectory] for turn in turns])
        value_N = clipped_objective((own_N + other_N) / lengths_N, advantages_N, clip=self.clip)
        # Each turn has the full gradient of its own tokens, and the values of a trajectory's turns sum to its value.
        turns_N = logprobs_NL.new_tensor([len(self.turns[turn.trajectory]) for turn in turns])
        return value_N - (1 - 1 / turns_N) * value_N.detach()

    def token_weight(self, turn: Turn) -> float:
        return 1 / max(1, self._tokens(turn.trajectory))

    def effect(self, turns: Sequence[Turn], new: LogProbs) -> UpdateEffect:
        all_turns = [turn for name in dict.fromkeys(turn.trajectory for turn in turns) for turn in self.turns[name]]
        per_turn = self._log_ratios(all_turns, new)
        log_ratio = torch.tensor(
            [
                sum(per_turn[other.key] for other in self.turns[turn.trajectory]) / self._length(turn.trajectory)
                for turn in turns
            ],
            dtype=torch.float64,
        )
        weights = torch.tensor([self.advantages[turn.trajectory] for turn in turns], dtype=torch.float64)
        return UpdateEffect(
            weights=weights, log_ratio=log_ratio, clipped=clip_binds(log_ratio, weights, clip=self.clip).double()
        )

    def _length(self, trajectory: str) -> int:
        return 1 if self.ratio == "product" else max(1, self._tokens(trajectory))

    def _tokens(self, trajectory: str) -> int:
        return sum(len(turn.action_ids) for turn in self.turns[trajectory])

    def _log_ratios(self, turns: Sequence[Turn], new: LogProbs) -> dict[TurnKey, float]:
        log_ratios = action_log_ratio([(turn,) for turn in turns], new, self.old, "product").tolist()
        return {turn.key: value for turn, value in zip(turns, log_ratios, strict=True)}
