"""Numbers and texts of a run as the page takes them: compressed JSON, the same bytes each time."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

from seeupo.utils.numbers import finite_number

LONE_SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters: JSON may hold them, UTF-8 may not."""


def rounded(value: object) -> float | None:
    """A finite finite_number with five significant digits, and None for anything else."""
    found = finite_number(value)
    return None if found is None else float(f"{found:.5g}") + 0.0  # which makes 0 of -0


def finely(value: object) -> float | None:
    """A finite finite_number with eight significant digits: what is close to 1 must not look like 1."""
    found = finite_number(value)
    return None if found is None else float(f"{found:.8g}") + 0.0


def json_bytes(value: Any) -> bytes:
    """JSON in as few bytes as it takes; halves of characters are replaced."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return LONE_SURROGATES.sub("\ufffd", text).encode()


def compressor() -> zlib._Compress:
    """Compresses to gzip without a date or a name, so that the same content gives the same bytes."""
    return zlib.compressobj(wbits=31)


def packed(value: Any) -> bytes:
    """A value as gzipped JSON."""
    compress = compressor()
    return compress.compress(json_bytes(value)) + compress.flush()


def base64_size(count: int) -> int:
    """How long so many bytes are in base64."""
    return 4 * -(-count // 3)
