"""What is maximised: clipped ratios of tokens, of turns or of whole trajectories, as picklable functions.

Everything is looked up by the sample's key, so that an engine may permute and split the samples as it likes. Log-probs
come padded to [N, L]; a value per sample goes back.
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
from seeupo.types import Sample, SampleKey

Ratio = Literal["length_normalized", "product"]


def action_log_ratio(samples: Sequence[Sample], new: LogProbs, old: LogProbs, ratio: Ratio) -> Tensor:
    """log r [n] of the samples' actions, in float64, from log-probs outside any gradient."""
    return sequence_log_ratio(
        padded(samples, new).double(),
        padded(samples, old).double(),
        action_mask(samples),
        length_normalize=ratio == "length_normalized",
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of n samples: their weights, log r, and the share of each action that the clip holds, all [n]."""

    weights: Tensor
    log_ratio: Tensor
    clipped: Tensor


@dataclass(frozen=True, kw_only=True)
class RatioObjective(ABC):
    """A clipped ratio - kl_coef * KL + entropy_coef * entropy, per sample.

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
    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, samples: Sequence[Sample]) -> Tensor:
        """The clipped part [N]."""

    @abstractmethod
    def token_weight(self, sample: Sample) -> float:
        """What each token of the sample counts in the KL and entropy terms."""

    @abstractmethod
    def outcome(self, samples: Sequence[Sample], new: LogProbs) -> Outcome:
        """What has become of the samples with new log-probs."""

    def at(self, current: Callable[[Sequence[Sample]], LogProbs], samples: Sequence[Sample]) -> Self:
        """The objective for a step on these samples, after others; `current` gives log-probs as they are now."""
        return self

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, samples: Sequence[Sample]) -> Tensor:
        mask_NL = action_mask(samples).to(logprobs_NL.device)
        multiplicities_N = logprobs_NL.new_tensor([self.multiplicities[sample.trajectory] for sample in samples])
        weights_N = logprobs_NL.new_tensor([self.token_weight(sample) for sample in samples])
        value_N = self.clipped(logprobs_NL, mask_NL, samples)
        if self.kl_coef:
            reference_NL = padded(samples, self.reference).to(logprobs_NL)
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

    advantages: Mapping[SampleKey, float]
    ratio: Ratio = "length_normalized"

    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, samples: Sequence[Sample]) -> Tensor:
        old_NL = padded(samples, self.old).to(logprobs_NL)
        advantages_N = logprobs_NL.new_tensor([self.advantages[sample.key] for sample in samples])
        length_normalize = self.ratio == "length_normalized"
        log_ratio_N = sequence_log_ratio(logprobs_NL, old_NL, mask_NL, length_normalize=length_normalize)
        return clipped_objective(log_ratio_N, advantages_N, clip=self.clip)

    def token_weight(self, sample: Sample) -> float:
        return 1 / max(1, len(sample.action_ids))

    def outcome(self, samples: Sequence[Sample], new: LogProbs) -> Outcome:
        weights = torch.tensor([self.advantages[sample.key] for sample in samples], dtype=torch.float64)
        log_ratio = action_log_ratio(samples, new, self.old, self.ratio)
        return Outcome(
            weights=weights, log_ratio=log_ratio, clipped=clip_binds(log_ratio, weights, clip=self.clip).double()
        )


@dataclass(frozen=True, kw_only=True)
class TokenObjective(RatioObjective):
    """The sum over an action's tokens of min(r A, clip(r) A), with r and A of each token, times a scale.

    Attributes:
        advantages: [len(action)] per sample.
        scales: per trajectory id: one divided by its length makes the sum over a trajectory's actions a mean.
    """

    advantages: Mapping[SampleKey, Tensor]
    scales: Mapping[str, float]

    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, samples: Sequence[Sample]) -> Tensor:
        old_NL = padded(samples, self.old).to(logprobs_NL)
        log_ratio_NL = torch.where(mask_NL, logprobs_NL, 0.0) - torch.where(mask_NL, old_NL, 0.0)
        advantages_NL = padded(samples, self.advantages).to(logprobs_NL)
        value_NL = clipped_objective(log_ratio_NL.flatten(), advantages_NL.flatten(), clip=self.clip)
        scales_N = logprobs_NL.new_tensor([self.scales[sample.trajectory] for sample in samples])
        return scales_N * value_NL.view_as(logprobs_NL).sum(1)

    def token_weight(self, sample: Sample) -> float:
        return self.scales[sample.trajectory]

    def outcome(self, samples: Sequence[Sample], new: LogProbs) -> Outcome:
        mask_NL, advantages_NL = action_mask(samples), padded(samples, self.advantages).double()
        log_ratio_NL = torch.where(mask_NL, padded(samples, new).double() - padded(samples, self.old).double(), 0.0)
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
        turns: per trajectory id, its samples.
        ratio: "length_normalized" by the number of tokens of all its actions, or their "product".
        elsewhere: per sample, the log-ratio of the trajectory's other turns; none is 0, as before the first step.
    """

    advantages: Mapping[str, float]
    turns: Mapping[str, Sequence[Sample]]
    ratio: Ratio = "length_normalized"
    elsewhere: Mapping[SampleKey, float] = field(default_factory=dict)

    def at(self, current: Callable[[Sequence[Sample]], LogProbs], samples: Sequence[Sample]) -> Self:
        names = dict.fromkeys(sample.trajectory for sample in samples)
        whole = [sample for name in names for sample in self.turns[name]]
        of_turn = self._log_ratios(whole, current(whole))
        of_all = {name: sum(of_turn[sample.key] for sample in self.turns[name]) for name in names}
        return replace(
            self, elsewhere={sample.key: of_all[sample.trajectory] - of_turn[sample.key] for sample in samples}
        )

    def clipped(self, logprobs_NL: Tensor, mask_NL: Tensor, samples: Sequence[Sample]) -> Tensor:
        old_NL = padded(samples, self.old).to(logprobs_NL)
        own_N = sequence_log_ratio(logprobs_NL, old_NL, mask_NL, length_normalize=False)
        elsewhere_N = logprobs_NL.new_tensor([self.elsewhere.get(sample.key, 0.0) for sample in samples])
        lengths_N = logprobs_NL.new_tensor([self._length(sample.trajectory) for sample in samples])
        advantages_N = logprobs_NL.new_tensor([self.advantages[sample.trajectory] for sample in samples])
        value_N = clipped_objective((own_N + elsewhere_N) / lengths_N, advantages_N, clip=self.clip)
        # Every turn has the gradient of its own part, and all of them together one trajectory's value.
        turns_N = logprobs_NL.new_tensor([len(self.turns[sample.trajectory]) for sample in samples])
        return value_N - (1 - 1 / turns_N) * value_N.detach()

    def token_weight(self, sample: Sample) -> float:
        return 1 / max(1, self._tokens(sample.trajectory))

    def outcome(self, samples: Sequence[Sample], new: LogProbs) -> Outcome:
        whole = [sample for name in {s.trajectory: None for s in samples} for sample in self.turns[name]]
        of_turn = self._log_ratios(whole, new)
        log_ratio = torch.tensor(
            [
                sum(of_turn[each.key] for each in self.turns[sample.trajectory]) / self._length(sample.trajectory)
                for sample in samples
            ],
            dtype=torch.float64,
        )
        weights = torch.tensor([self.advantages[sample.trajectory] for sample in samples], dtype=torch.float64)
        return Outcome(
            weights=weights, log_ratio=log_ratio, clipped=clip_binds(log_ratio, weights, clip=self.clip).double()
        )

    def _length(self, trajectory: str) -> int:
        return 1 if self.ratio == "product" else max(1, self._tokens(trajectory))

    def _tokens(self, trajectory: str) -> int:
        return sum(len(sample.action_ids) for sample in self.turns[trajectory])

    def _log_ratios(self, samples: Sequence[Sample], new: LogProbs) -> dict[SampleKey, float]:
        found = action_log_ratio(samples, new, self.old, "product").tolist()
        return {sample.key: value for sample, value in zip(samples, found, strict=True)}
