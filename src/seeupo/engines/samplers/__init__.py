"""Single-process samplers; `local_sampler` chooses between them."""

from __future__ import annotations

from seeupo.engines.samplers.local import LocalSampler
from seeupo.engines.samplers.padded import PaddedSampler
from seeupo.models.decoder import FAMILIES
from seeupo.models.loading import LoadedPolicy
from seeupo.types import Sampler


def local_sampler(policy: LoadedPolicy, *, training: bool = True, max_rows: int = 64) -> Sampler:
    """Return the fastest sampler for the policy's model."""
    supported = policy.model.config.get_text_config().model_type in FAMILIES
    return (LocalSampler if supported else PaddedSampler)(policy, training=training, max_rows=max_rows)
