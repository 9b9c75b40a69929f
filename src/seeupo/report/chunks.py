"""Blocks of trajectories, compressed as they come and kept in a spool file: memory does not grow with them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from seeupo.report.packing import base64_size, compressor

BLOCK_ROWS, BLOCK_BYTES = 200, 2_000_000
"""A block ends behind the group that reaches one of these; a page decodes whole blocks."""
BLOCK_COST, END_COST = 100, 32
"""Bytes for a block's frame in the page, and for the end of a compressed block."""


class Blocks:
    """Lists of bodies, written group by group as long as they fit."""

    def __init__(self, spool: BinaryIO) -> None:
        self._spool = spool
        self._sizes: list[int] = []
        self._closed = 0  # bytes in the page of the closed blocks, and of what goes elsewhere with the bodies
        self._begin()

    def _begin(self) -> None:
        self._compress = compressor()
        self._rows = self._raw = self._size = 0

    @property
    def used(self) -> int:
        """Bytes that everything so far takes in the page."""
        return self._closed + (self._cost(self._size) if self._rows else 0)

    def add(self, group: Sequence[bytes], limit: int, *, elsewhere: int = 0) -> tuple[int, int] | None:
        """Write a group's bodies; their block and the place of the first one in it.

        None if more than `limit` bytes would be used then; nothing is written in that case.

        Args:
            elsewhere: bytes that the group takes outside of its block.
        """
        trial = self._compress.copy()
        content = b"".join((b"," if self._rows + place else b"[") + body for place, body in enumerate(group))
        # All that went in comes out, so that its size is known.
        out = trial.compress(content) + trial.flush(zlib.Z_SYNC_FLUSH)
        if self._closed + elsewhere + self._cost(self._size + len(out)) > limit:
            return None
        self._spool.write(out)
        found = len(self._sizes), self._rows
        self._compress = trial
        self._closed += elsewhere
        self._rows += len(group)
        self._raw += len(content)
        self._size += len(out)
        if self._rows >= BLOCK_ROWS or self._raw >= BLOCK_BYTES:
            self.close()
        return found

    def close(self) -> None:
        """End the block that is being written, if there is one."""
        if self._rows:
            out = self._compress.compress(b"]") + self._compress.flush()
            self._spool.write(out)
            self._closed += self._cost(self._size)
            self._sizes.append(self._size + len(out))
        self._begin()

    def read(self) -> Iterator[bytes]:
        """The closed blocks, one at a time."""
        self._spool.seek(0)
        for size in self._sizes:
            yield self._spool.read(size)

    def _cost(self, size: int) -> int:
        return base64_size(size + END_COST) + BLOCK_COST
