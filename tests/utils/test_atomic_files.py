import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seeupo.utils import atomic_files
from seeupo.utils.atomic_files import atomic_write, partial_folder, partial_of, sync_folder, write_text


def test_text_is_written_unchanged(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "ü\r\n")
    write_text(path, "second\r\n")
    assert path.read_bytes() == b"second\r\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_error_leaves_the_file_unchanged(tmp_path, monkeypatch, call):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_interrupt_while_writing_leaves_the_file_unchanged(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def interrupted():
        with atomic_write(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_partial_file_of_a_killed_process_is_discarded(tmp_path):
    path = tmp_path / "a.txt"
    partial_of(path).write_text("left")
    with atomic_write(path) as partial, partial.open("a") as file:
        file.write("new")
    assert path.read_text() == "new"


def test_content_is_synced_before_the_rename_and_the_directory_after(tmp_path, monkeypatch):
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


def test_file_systems_without_directory_sync_are_supported(tmp_path, monkeypatch):
    def fail(_handle, code):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(atomic_files.os, "fsync", lambda handle: fail(handle, errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(atomic_files.os, "fsync", lambda handle: fail(handle, errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


def test_folders_of_killed_processes_are_removed_and_those_of_living_ones_kept(tmp_path):
    script = """
import os, signal, sys
from pathlib import Path
from seeupo.utils.atomic_files import partial_folder
with partial_folder(Path(sys.argv[1])) as partial:
    (partial / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    path, other = tmp_path / "out[1]", tmp_path / ".out1.123.partial"
    other.mkdir()
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    (left,) = set(tmp_path.iterdir()) - {other}
    assert [file.name for file in left.iterdir()] == ["half"]
    with partial_folder(path) as partial, pytest.MonkeyPatch.context() as patch:
        assert set(tmp_path.iterdir()) == {partial, other}
        patch.setattr(os, "getpid", lambda: 0)
        with partial_folder(path) as second:  # another process
            assert set(tmp_path.iterdir()) == {partial, second, other}
    assert list(tmp_path.iterdir()) == [other]
