import gzip
import os
import tracemalloc
import zlib

import pytest

from seeupo.utils import json_lines
from seeupo.utils.json_lines import UnreadableLines, parse_object, read_lines


def test_lines_are_the_same_gzipped_or_not(tmp_path):
    text = b'{"a": 1}\r\n\n{"b": 2}'
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "zipped").write_bytes(gzip.compress(text[:8]) + gzip.compress(text[8:]))
    expected = [b'{"a": 1}\r\n', b"\n", b'{"b": 2}']
    assert list(read_lines(tmp_path / "plain")) == list(read_lines(tmp_path / "zipped")) == expected


@pytest.mark.parametrize("zipped", [False, True])
def test_long_lines_and_large_files_are_refused(tmp_path, monkeypatch, zipped):
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(json_lines, "MAX_FILE_BYTES", 5000)

    def read(text):
        (tmp_path / "file").write_bytes(gzip.compress(text) if zipped else text)
        return list(read_lines(tmp_path / "file"))

    assert len(read((b"a" * 999 + b"\n") * 5)) == 5
    with pytest.raises(UnreadableLines, match="line 2 is longer than the limit"):
        read(b"a\n" + b"a" * 100_000)
    with pytest.raises(UnreadableLines, match="more text than the limit"):
        read(b"a\n" * 100_000)


def test_a_small_file_with_a_huge_line_is_refused_in_little_memory(tmp_path):
    compressor = zlib.compressobj(wbits=31)
    with (tmp_path / "a").open("wb") as file:
        for _ in range(300):
            file.write(compressor.compress(bytes(1_000_000)))
        file.write(compressor.flush())
    assert (tmp_path / "a").stat().st_size < 400_000
    tracemalloc.start()
    with pytest.raises(UnreadableLines, match="line 1 is longer than the limit of 32 MB"):
        list(read_lines(tmp_path / "a"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * json_lines.MAX_LINE_BYTES


def test_unreadable_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("none", "No such file"), ("pipe", "not a regular file"), (".", "not a regular file")):
        with pytest.raises(UnreadableLines, match=reason):
            list(read_lines(tmp_path / name))
    whole = gzip.compress(os.urandom(1000))
    for damaged in (whole[:-20], whole[:20] + b"????" + whole[24:]):
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(UnreadableLines, match="damaged"):
            list(read_lines(tmp_path / "damaged"))


def test_only_objects_are_parsed():
    assert parse_object(b'\xef\xbb\xbf{"a": 1}\r\n') == {"a": 1}
    for line, reason in (
        (b"\xff{}", "not UTF-8"),
        (b"{", "not JSON"),
        (b'{"a": "\n"}', r"^not JSON \(Invalid control character at character 8\)$"),
        (b'[{"a": 1}]', "^a JSON array; one object per line is expected$"),
        (b'[{"a": 1},\n', "^a JSON array; one object per line is expected$"),
        (b"1", "expected a JSON object, and this is int"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "limit"),
    ):
        with pytest.raises(ValueError, match=reason):
            parse_object(line)
