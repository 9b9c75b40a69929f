"""Single-process samplers; `local_sampler` chooses between them."""

from __future__ import annotations

from seeupo.engines.samplers.local import LocalSampler
from seeupo.engines.samplers.padded import PaddedSampler
from seeupo.models.decoder import FAMILIES
from seeupo.models.loading import LoadedPolicy
from seeupo.types import Sampler


def local_sampler(
    policy: LoadedPolicy, *, training: bool = True, max_rows: int = 64, speculation: bool = True
) -> Sampler:
    """Return the fastest sampler for the policy's model."""
    if policy.model.config.get_text_config().model_type in FAMILIES:
        return LocalSampler(policy, training=training, max_rows=max_rows, speculation=speculation)
    return PaddedSampler(policy, training=training, max_rows=max_rows)
