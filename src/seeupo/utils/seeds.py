"""Random seeds derived from names, independent of any global state."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: object, bits: int = 31) -> int:
    """Return a seed of `bits` bits that depends on `seed` and `names` only."""
    text = "/".join(map(str, (seed, *names))).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> (64 - bits)
