"""Read JSON lines that came from elsewhere, gzipped or not, within limits: a small file can expand to any size."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from seeupo.utils.plain_files import open_plain

MAX_LINE_BYTES = 32_000_000
"""Bytes of one line after decompression; a trajectory of 300,000 tokens takes about half of it."""
MAX_FILE_BYTES = 2_000_000_000
"""Bytes of a file after decompression."""
GZIP_MAGIC = b"\x1f\x8b"
ARRAY = "a JSON array; one object per line is expected"


class UnreadableLines(Exception):
    """A file cannot be read as lines; the message says why, without the name of the file."""


class TruncatedLines(UnreadableLines):
    """A file ends in the middle of its gzip data or of a line; the lines before can be used."""


def read_lines(path: Path, *, max_line_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the lines of a regular file, with one of them in memory at a time; gzip is recognized by its content."""
    longest = MAX_LINE_BYTES if max_line_bytes is None else max_line_bytes
    number = 0
    total = 0
    try:
        with open_plain(path) as raw:
            zipped = cast("BufferedReader", raw).peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            file = gzip.GzipFile(fileobj=raw) if zipped else raw
            while line := file.readline(longest + 1):
                number += 1
                total += len(line)
                if len(line) > longest:
                    raise UnreadableLines(f"line {number} is longer than the limit of {longest / 1e6:g} MB")
                if total > MAX_FILE_BYTES:
                    raise UnreadableLines(f"it has more text than the limit of {MAX_FILE_BYTES / 1e6:g} MB; split it")
                yield line
    except EOFError as error:
        raise TruncatedLines(f"its gzip data are damaged ({error})") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableLines(f"its gzip data are damaged ({error})") from None
    except OSError as error:
        raise UnreadableLines(error.strerror or str(error)) from None


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; raise `ValueError` with the reason if it is none."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        if error.doc.lstrip().startswith("["):  # the first line of an array that spans lines
            raise ValueError(ARRAY) from None
        raise ValueError(f"not JSON ({error.msg.removesuffix(' at')} at character {error.pos + 1})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if isinstance(value, list):
        raise ValueError(ARRAY)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, and this is {type(value).__name__}")
    return value
