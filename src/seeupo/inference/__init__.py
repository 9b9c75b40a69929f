"""Single-process samplers; `make_sampler` chooses between them."""

from __future__ import annotations

from seeupo.inference.local_sampler import LocalSampler
from seeupo.inference.padded_sampler import PaddedSampler
from seeupo.models.loading import LoadedPolicy
from seeupo.models.packing.tree_layers import has_known_layers
from seeupo.protocols import Sampler


def make_sampler(
    policy: LoadedPolicy, *, training: bool = True, max_rows: int = 64, speculation: bool = True
) -> Sampler:
    """Return the fastest sampler for the policy's model."""
    if has_known_layers(policy.model):
        return LocalSampler(policy, training=training, max_rows=max_rows, speculation=speculation)
    return PaddedSampler(policy, training=training, max_rows=max_rows)
