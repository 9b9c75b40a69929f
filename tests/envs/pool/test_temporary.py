import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from seeupo.envs.pool.temporary import TemporaryFolder, remove_leftovers

OWNER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from seeupo.envs.pool.temporary import TemporaryFolder
folder = TemporaryFolder.create()
(folder.path / "home").mkdir()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove_leftovers.cache_clear()
    yield tmp_path
    remove_leftovers.cache_clear()


def start_owner(place):
    """Start a process that owns a folder until the end of its input."""
    command = [sys.executable, "-c", OWNER, place]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names(place):
    return sorted(str(path) for path in place.iterdir())


def test_folders_of_killed_owners_are_removed_at_the_next_start(place):
    """Those of living owners stay."""
    with start_owner(place) as first, start_owner(place) as second:
        killed, living = (owner.stdout.readline().strip() for owner in (first, second))
        first.kill()
        first.wait()
        assert names(place) == sorted([killed, living])
        own = TemporaryFolder.create()
        assert names(place) == sorted([living, str(own.path)])
        own.remove()
        own.remove()
        assert names(place) == [living]


def test_only_folders_of_workers_are_removed(place):
    (place / "seeupo-worker-old" / "packages").mkdir(parents=True)
    (place / "kept").mkdir()
    (place / "kept" / "file").touch()
    (place / "seeupo-worker-link").symlink_to(place / "kept")
    (place / "seeupo-worker-file").touch()
    (place / "another").mkdir()
    remove_leftovers(str(place))
    assert [path.name for path in sorted(place.iterdir())] == [
        "another",
        "kept",
        "seeupo-worker-file",
        "seeupo-worker-link",
    ]
    assert (place / "kept" / "file").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can create a folder of another user")
def test_folders_of_other_users_are_kept(place):
    folder = place / "seeupo-worker-theirs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    remove_leftovers(str(place))
    assert folder.exists()


@pytest.mark.parametrize("is_open", [False, True])
def test_a_folder_that_was_removed_before_it_was_locked_is_replaced(place, monkeypatch, is_open):
    create = tempfile.mkdtemp
    made = []

    def raced(**arguments):
        made.append(create(**arguments))
        if len(made) > 1:
            monkeypatch.undo()
        elif is_open:
            monkeypatch.setattr("seeupo.envs.pool.temporary.lock_folder", lambda lock, wait=True: Path(made[0]).rmdir())
        else:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", raced)
    folder = TemporaryFolder.create()
    assert str(folder.path) == made[1]
    assert folder.path.exists()
    folder.remove()
