import os

import pytest

from seeupo.utils.plain_files import open_plain, read_plain


def test_regular_files_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    assert read_plain(tmp_path / "file", max_bytes=7) == b"content"
    (tmp_path / "run").symlink_to(tmp_path)
    assert read_plain(tmp_path / "run" / "file", max_bytes=7) == b"content"


def test_larger_files_are_refused_without_reading_them(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(OSError, match="larger than 1 MB"):
        read_plain(tmp_path / "sparse", max_bytes=10**6)


def test_links_pipes_and_directories_are_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("link", "symbolic link"), ("dangling", "symbolic link"), ("pipe", "regular file")):
        with pytest.raises(OSError, match=reason):
            open_plain(tmp_path / name)
    with pytest.raises(OSError, match="regular file"):
        open_plain(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "missing")
