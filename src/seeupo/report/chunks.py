"""Compressed chunks of trajectories in a temporary file, so that memory does not grow with the run."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from seeupo.report.packing import gzip_compressor

CHUNK_ROWS, CHUNK_BYTES = 200, 2_000_000
"""A chunk ends after the group that reaches one of these limits. The page decodes whole chunks."""


class ChunkWriter:
    """Writes groups of JSON bodies into gzipped JSON arrays.

    Attributes:
        used: Compressed bytes so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.used = 0
        self._file = file
        self._sizes: list[int] = []
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._compressor = gzip_compressor()
        self._rows = self._raw = self._size = 0

    def add(self, group: Sequence[bytes], limit: int) -> tuple[int, int] | None:
        """Write the bodies of a group and return their chunk and the offset of the first one in it.

        Returns None, and writes nothing, if more than `limit` bytes would then be used.
        """
        compressor = self._compressor.copy()
        content = b"".join((b"," if self._rows + offset else b"[") + body for offset, body in enumerate(group))
        # Flushed, so that the compressed size is known.
        compressed = compressor.compress(content) + compressor.flush(zlib.Z_SYNC_FLUSH)
        if self.used + len(compressed) > limit:
            return None
        location = len(self._sizes), self._rows
        self._compressor = compressor
        self._rows += len(group)
        self._raw += len(content)
        self._write(compressed)
        if self._rows >= CHUNK_ROWS or self._raw >= CHUNK_BYTES:
            self.finish_chunk()
        return location

    def finish_chunk(self) -> None:
        """Finish the current chunk, if it has any rows."""
        if self._rows:
            self._write(self._compressor.compress(b"]") + self._compressor.flush())
            self._sizes.append(self._size)
        self._start_chunk()

    def chunks(self) -> Iterator[bytes]:
        """Yield the finished chunks."""
        self._file.seek(0)
        for size in self._sizes:
            yield self._file.read(size)

    def _write(self, compressed: bytes) -> None:
        self._file.write(compressed)
        self._size += len(compressed)
        self.used += len(compressed)
