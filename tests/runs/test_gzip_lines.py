import gzip
import tracemalloc
import zlib

import pytest

from seeupo.runs import gzip_lines
from seeupo.runs.gzip_lines import LimitExceeded, read_gzip_lines


def bomb(path, size, *, line_end_every=None):
    """Write a file that decompresses to `size` bytes of zeros, with a line end in each block of `line_end_every`."""
    compressor = zlib.compressobj(wbits=31)
    block = bytes(1_000_000) if line_end_every is None else (bytes(line_end_every - 1) + b"\n")
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(compressor.compress(block))
        file.write(compressor.flush())


def test_lines_are_read_with_their_ends(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"one\ntwo\n") + gzip.compress(b"three\n"))
    assert list(read_gzip_lines(tmp_path / "a")) == [b"one\n", b"two\n", b"three\n"]


def test_an_incomplete_last_line_is_an_error_after_the_complete_ones(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"one\ntwo"))
    lines = read_gzip_lines(tmp_path / "a")
    assert next(lines) == b"one\n"
    with pytest.raises(EOFError):
        next(lines)


def test_a_small_file_with_a_huge_line_is_refused_in_little_memory(tmp_path):
    bomb(tmp_path / "a", 300_000_000)
    assert (tmp_path / "a").stat().st_size < 400_000
    tracemalloc.start()
    with pytest.raises(LimitExceeded, match="line 1 is longer than the limit of 32 MB"):
        list(read_gzip_lines(tmp_path / "a"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * gzip_lines.MAX_LINE_BYTES


def test_the_whole_file_is_limited_too(tmp_path, monkeypatch):
    bomb(tmp_path / "a", 1_000_000, line_end_every=1000)
    monkeypatch.setattr(gzip_lines, "MAX_FILE_BYTES", 500_000)
    lines = read_gzip_lines(tmp_path / "a")
    assert [len(next(lines)) for _ in range(500)] == [1000] * 500
    with pytest.raises(LimitExceeded, match=r"more than the limit of 0.5 MB"):
        next(lines)


def test_the_number_of_lines_is_limited(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(gzip.compress(b"\n" * 11))
    monkeypatch.setattr(gzip_lines, "MAX_LINES", 10)
    with pytest.raises(LimitExceeded, match="more lines than the limit of 10"):
        list(read_gzip_lines(tmp_path / "a"))
    monkeypatch.setattr(gzip_lines, "MAX_LINES", 11)
    assert len(list(read_gzip_lines(tmp_path / "a"))) == 11
