"""Read gzipped lines within limits: a file of a few megabytes can expand to many gigabytes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

from seeupo.utils.plain_files import open_plain

MAX_LINE_BYTES = 32_000_000
"""Bytes of one line after decompression; a trajectory of 300,000 tokens takes about half of it."""
MAX_FILE_BYTES = 2_000_000_000
"""Bytes of a file after decompression."""
MAX_LINES = 100_000
"""Lines of a file."""


class LimitExceeded(Exception):
    """A file is larger than any that a run writes; the message says which limit it exceeds."""


def read_gzip_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a gzip file, with one of them in memory at a time.

    Raises:
        LimitExceeded: A line, the number of lines or the whole file is too large.
        EOFError: The file ends in the middle of a line or of its compressed data.
        OSError, zlib.error: The file cannot be read, is not a regular file, or is damaged.
    """
    total = 0
    with open_plain(path) as raw, gzip.open(raw, "rb") as file:
        for number in range(1, MAX_LINES + 1):
            line = file.readline(MAX_LINE_BYTES + 1)
            total += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise LimitExceeded(f"line {number} is longer than the limit of {MAX_LINE_BYTES / 1e6:g} MB")
            if total > MAX_FILE_BYTES:
                raise LimitExceeded(f"it decompresses to more than the limit of {MAX_FILE_BYTES / 1e6:g} MB")
            if not line:
                return
            if not line.endswith(b"\n"):
                raise EOFError(f"{path} ends in the middle of line {number}")
            yield line
        if file.read(1):
            raise LimitExceeded(f"it has more lines than the limit of {MAX_LINES:,}")
