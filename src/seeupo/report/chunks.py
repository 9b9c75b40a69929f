"""Compressed chunks of trajectories in a temporary file, so that memory does not grow with the run."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from seeupo.report.packing import base64_size, gzip_compressor

CHUNK_ROWS, CHUNK_BYTES = 200, 2_000_000
"""A chunk ends after the group that reaches one of these limits. The page decodes whole chunks."""
CHUNK_OVERHEAD, END_BYTES = 100, 32
"""Bytes of a chunk's markup in the page, and of the end of its compressed stream."""


class ChunkWriter:
    """Writes groups of JSON bodies into gzipped JSON arrays, within a limit of bytes in the page."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sizes: list[int] = []
        self._finished = 0  # bytes in the page: finished chunks, and what their rows take in the index
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._compressor = gzip_compressor()
        self._rows = self._raw = self._size = 0

    @property
    def used(self) -> int:
        """Bytes that everything so far takes in the page."""
        return self._finished + (self._page_bytes(self._size) if self._rows else 0)

    def add(self, group: Sequence[bytes], limit: int, *, index_bytes: int = 0) -> tuple[int, int] | None:
        """Write the bodies of a group and return their chunk and the offset of the first one in it.

        Returns None, and writes nothing, if the page would then use more than `limit` bytes.

        Args:
            index_bytes: Bytes that the group takes in the index of the page.
        """
        compressor = self._compressor.copy()
        content = b"".join((b"," if self._rows + offset else b"[") + body for offset, body in enumerate(group))
        # Flushed, so that the compressed size is known.
        compressed = compressor.compress(content) + compressor.flush(zlib.Z_SYNC_FLUSH)
        if self._finished + index_bytes + self._page_bytes(self._size + len(compressed)) > limit:
            return None
        self._file.write(compressed)
        location = len(self._sizes), self._rows
        self._compressor = compressor
        self._finished += index_bytes
        self._rows += len(group)
        self._raw += len(content)
        self._size += len(compressed)
        if self._rows >= CHUNK_ROWS or self._raw >= CHUNK_BYTES:
            self.finish_chunk()
        return location

    def finish_chunk(self) -> None:
        """Finish the current chunk, if it has any rows."""
        if self._rows:
            end = self._compressor.compress(b"]") + self._compressor.flush()
            self._file.write(end)
            self._finished += self._page_bytes(self._size)
            self._sizes.append(self._size + len(end))
        self._start_chunk()

    def chunks(self) -> Iterator[bytes]:
        """Yield the finished chunks."""
        self._file.seek(0)
        for size in self._sizes:
            yield self._file.read(size)

    def _page_bytes(self, size: int) -> int:
        return base64_size(size + END_BYTES) + CHUNK_OVERHEAD
