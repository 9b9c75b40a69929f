"""Numbers and texts of a run as compressed JSON; the same values always give the same bytes."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

from seeupo.utils.numbers import finite_number

LONE_SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters, which JSON may contain and UTF-8 may not."""


def rounded(value: object, digits: int = 5) -> float | None:
    """Return a finite number rounded to significant digits, and None for anything else."""
    number = finite_number(value)
    return None if number is None else float(f"{number:.{digits}g}") + 0.0  # turns -0 into 0


def json_bytes(value: Any) -> bytes:
    """Return compact JSON; lone surrogates are replaced."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return LONE_SURROGATES.sub("\ufffd", text).encode()


def gzip_compressor() -> zlib._Compress:
    """Return a compressor that writes gzip without a date or a name, which would change the bytes."""
    return zlib.compressobj(wbits=31)


def gzipped_json(value: Any) -> bytes:
    compressor = gzip_compressor()
    return compressor.compress(json_bytes(value)) + compressor.flush()
