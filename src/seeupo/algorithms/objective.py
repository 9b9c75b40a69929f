"""The clipped objective on the ratio of whole actions, as a picklable function that any engine can step on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from seeupo.algorithms.batch import LogProbs, action_mask, padded
from seeupo.core import clipped_objective, k3, masked_mean, sequence_log_ratio
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
class SequenceObjective:
    """min(r A, clip(r) A) - kl_coef * KL + entropy_coef * entropy, per sample.

    Everything is looked up by the sample's key, so that an engine may permute and split the samples as it likes.

    Attributes:
        old: log-probs under the policy that sampled.
        advantages: what the action's ratio is multiplied with: M in SeeUPO.
        multiplicities: per trajectory id, how many trajectories it stands for.
        ratio: r as the geometric mean of the token ratios ("length_normalized") or as their "product".
        clip: (low, high), or None.
        reference: log-probs under the reference policy; needed when kl_coef is not 0.
        kl_coef, entropy_coef: of the k3 estimate and the entropy, both means over the action's tokens.
    """

    old: LogProbs
    advantages: Mapping[SampleKey, float]
    multiplicities: Mapping[str, float]
    ratio: Ratio = "length_normalized"
    clip: Clip | None = (0.2, 0.2)
    reference: LogProbs = field(default_factory=dict)
    kl_coef: float = 0.0
    entropy_coef: float = 0.0

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef != 0

    def __call__(self, logprobs_NL: Tensor, entropies_NL: Tensor | None, samples: Sequence[Sample]) -> Tensor:
        mask_NL = action_mask(samples).to(logprobs_NL.device)
        old_NL = padded(samples, self.old).to(logprobs_NL)
        advantages_N = logprobs_NL.new_tensor([self.advantages[sample.key] for sample in samples])
        multiplicities_N = logprobs_NL.new_tensor([self.multiplicities[sample.trajectory] for sample in samples])

        length_normalize = self.ratio == "length_normalized"
        log_ratio_N = sequence_log_ratio(logprobs_NL, old_NL, mask_NL, length_normalize=length_normalize)
        value_N = clipped_objective(log_ratio_N, advantages_N, clip=self.clip)
        if self.kl_coef:
            reference_NL = padded(samples, self.reference).to(logprobs_NL)
            # Rubbish under the mask is replaced before the exponential: behind it, 0 * nan is nan in the backward pass.
            kl_NL = k3(torch.where(mask_NL, logprobs_NL, 0.0), torch.where(mask_NL, reference_NL, 0.0))
            value_N = value_N - self.kl_coef * masked_mean(kl_NL, mask_NL)
        if self.entropy_coef:
            if entropies_NL is None:
                raise ValueError("entropy_coef is set but the engine passed no entropies")
            value_N = value_N + self.entropy_coef * masked_mean(entropies_NL, mask_NL)
        return multiplicities_N * value_N
