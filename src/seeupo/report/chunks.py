"""Compressed chunks of trajectories, of which the page decodes those that it shows."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from seeupo.report.packing import gzip_compressor

CHUNK_ROWS, CHUNK_BYTES = 200, 2_000_000
"""A chunk ends after the group that reaches one of these limits. The page decodes whole chunks."""


class ChunkWriter:
    """Writes groups of JSON bodies into gzipped JSON arrays.

    Attributes:
        chunks: Finished chunks.
        used: Compressed bytes so far.
    """

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.used = 0
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._compressor = gzip_compressor()
        self._content = b""
        self._rows = self._raw = 0

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
        location = len(self.chunks), self._rows
        self._compressor = compressor
        self._rows += len(group)
        self._raw += len(content)
        self._append(compressed)
        if self._rows >= CHUNK_ROWS or self._raw >= CHUNK_BYTES:
            self.finish_chunk()
        return location

    def finish_chunk(self) -> None:
        """Finish the current chunk, if it has any rows."""
        if self._rows:
            self._append(self._compressor.compress(b"]") + self._compressor.flush())
            self.chunks.append(self._content)
        self._start_chunk()

    def _append(self, compressed: bytes) -> None:
        self._content += compressed
        self.used += len(compressed)
