"""Seeds that depend on a run's seed and a name, and on nothing that happened before."""

from __future__ import annotations

import hashlib


def seed_of(seed: int, name: str) -> int:
    """A seed of its own for everything that has a name."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big") >> 33
