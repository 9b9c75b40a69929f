import errno
import os
from pathlib import Path

import pytest

from seeupo.utils import atomic_files as whole_files
from seeupo.utils.atomic_files import partial_of, sync_folder, write_text, written_whole


def test_text_is_written_as_it_is(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "ü\r\n")
    write_text(path, "second\r\n")
    assert path.read_bytes() == b"second\r\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_leaves_the_file_as_it_was(tmp_path, monkeypatch, call):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_while_writing_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def interrupted():
        with written_whole(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_does_not_get_in(tmp_path):
    path = tmp_path / "a.txt"
    partial_of(path).write_text("left")
    with written_whole(path) as partial, partial.open("a") as file:
        file.write("new")
    assert path.read_text() == "new"


def test_the_content_is_on_the_disk_before_the_name_and_the_name_at_the_end(tmp_path, monkeypatch):
    path, happened = tmp_path / "a.txt", []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(handle):
        fsync(handle)
        happened.append(Path(f"/proc/self/fd/{handle}").readlink().name)

    def spy_replace(source, target):
        replace(source, target)
        happened.append("renamed")

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    write_text(path, "new")
    assert happened == ["a.txt.partial", "renamed", tmp_path.name]


def test_file_systems_that_cannot_sync_folders_are_used_all_the_same(tmp_path, monkeypatch):
    def fail(_handle, code):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(whole_files.os, "fsync", lambda handle: fail(handle, errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(whole_files.os, "fsync", lambda handle: fail(handle, errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
