import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from seeupo.errors import CheckpointError
from seeupo.runs.checkpoints import Checkpoints


def saves(content: str):
    """Return a `save` that writes two files, one of them in a subdirectory."""

    def save(folder):
        (folder / "weights.bin").write_text(content)
        (folder / "critic" / "head").mkdir(parents=True)
        (folder / "critic" / "head" / "weights.bin").write_text(content * 2)

    return save


def write(checkpoints: Checkpoints, iteration: int, *, best: bool = False, content: str | None = None):
    return checkpoints.write(iteration, {"n": iteration}, saves(content or f"content {iteration}"), best=best)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def made(tmp_path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def test_a_written_checkpoint_is_found(made):
    assert (made.latest(), made.best_iteration()) == (None, None)
    path = made.write(10, {"seed": 1, "random": [1, 2], "best": float("-inf")}, saves("abc"))
    found = Checkpoints(made.folder, keep=2).latest()
    assert (found.path, found.iteration) == (path, 10)
    assert found.state == {"seed": 1, "random": [1, 2], "best": float("-inf")}
    assert (path / "critic" / "head" / "weights.bin").read_text() == "abcabc"
    assert path.name == "00010"
    assert made.best_iteration() is None


def test_the_latest_and_the_best_are_kept(made):
    for iteration in (1, 2, 3, 4, 5):
        write(made, iteration, best=iteration in (1, 2))
    assert names(made.folder) == ["00002", "00004", "00005"]
    assert (made.latest().iteration, made.best_iteration()) == (5, 2)
    write(made, 6, best=True)
    assert names(made.folder) == ["00005", "00006"]
    assert made.best_iteration() == 6


def test_checkpoints_are_found_by_number_and_verified(made):
    for iteration in (1, 2):
        write(made, iteration, best=iteration == 1)
    reader = Checkpoints(made.folder, keep=1, read_only=True)
    assert (reader.best_iteration(), reader.find(1).state) == (1, {"n": 1})
    with pytest.raises(CheckpointError, match="no checkpoint 3; available: 1, 2"):
        reader.find(3)
    (made.folder / "00001" / "weights.bin").write_text("something else")
    with pytest.raises(CheckpointError, match=r"is damaged.*choose another one"):
        reader.find(1)
    assert (made.folder / "00001").is_dir()


def test_checkpoints_are_ordered_by_number(made):
    for iteration in (99_999, 100_000):
        write(made, iteration)
    assert made.latest().iteration == 100_000


def test_a_checkpoint_of_the_same_iteration_is_replaced(made):
    write(made, 1, content="old", best=True)
    write(made, 1, content="new", best=True)
    assert (made.latest().path / "weights.bin").read_text() == "new"
    assert names(made.folder) == ["00001"]


def test_files_and_directories_are_synced_before_the_checkpoint_is_published(made, monkeypatch):
    synced, at_rename, fsync, rename = set(), [], os.fsync, os.rename

    def spy_fsync(handle):
        fsync(handle)
        synced.add(os.fstat(handle).st_ino)

    def spy_rename(source, target):
        at_rename.append(set(synced))
        rename(source, target)
        synced.clear()

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)
    path = write(made, 10)
    monkeypatch.undo()
    assert {each.stat().st_ino for each in (path, *path.rglob("*"))} <= at_rename[-1]
    assert {made.folder.stat().st_ino, made.folder.parent.stat().st_ino} <= synced  # the names, after the rename


def delete_file(path):
    (path / "critic" / "head" / "weights.bin").unlink()
    return "'critic/head/weights.bin'"


def truncate_file(path):
    os.truncate(path / "weights.bin", 3)
    return "'weights.bin'.* 3 bytes.* 10"


def change_file(path):
    (path / "weights.bin").write_text("Content 20")
    return "'weights.bin'.* checksum"


def delete_manifest(path):
    (path / "manifest.json").unlink()
    return "no manifest.json"


def truncate_manifest(path):
    os.truncate(path / "manifest.json", 40)
    return "invalid manifest.json"


def binary_manifest(path):
    (path / "manifest.json").write_bytes(b"\xff\x00")
    return "invalid manifest.json"


def nested_manifest(path):
    (path / "manifest.json").write_text("[" * 100_000)
    return "invalid manifest.json"


def change_manifest(path, **changes):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))
    return manifest["files"]


def list_outside_path(path):
    (path.parent / "x").write_text("x")
    entry = {"size": 1, "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}
    change_manifest(path, files={**change_manifest(path), "../x": entry})
    return "'../x'"


def list_nothing(path):
    change_manifest(path, files={})
    return "'critic/head/weights.bin' that its manifest does not list"


def list_without_checksums(path):
    change_manifest(path, files={name: {} for name in change_manifest(path)})
    return "invalid manifest.json"


def list_as_array(path):
    change_manifest(path, files=["state.json"])
    return "invalid manifest.json"


def change_iteration(path):
    change_manifest(path, iteration=30)
    return "iteration 30"


def change_format(path):
    change_manifest(path, format="else")
    return "invalid manifest.json"


def add_unlisted_file(path):
    (path / "more.safetensors").write_text("")
    return "'more.safetensors'"


def replace_file_by_link(path):
    (path / "weights.bin").rename(path.parent / "elsewhere")
    (path / "weights.bin").symlink_to(path.parent / "elsewhere")
    return "'weights.bin', which is not a regular file"


def replace_directory_by_link(path):
    (path / "critic").rename(path.parent / "elsewhere")
    (path / "critic").symlink_to(path.parent / "elsewhere")
    return "'critic/head/weights.bin'"


def replace_file_by_pipe(path):
    (path / "weights.bin").unlink()
    os.mkfifo(path / "weights.bin")
    return "'weights.bin', which is not a regular file"


def replace_checkpoint_by_file(path):
    shutil.rmtree(path)
    path.write_text("")
    return "cannot be read"


DAMAGES = [
    delete_file, truncate_file, change_file, delete_manifest, truncate_manifest, binary_manifest, nested_manifest,
    list_outside_path, list_nothing, list_without_checksums, list_as_array, change_iteration,
    change_format, add_unlisted_file, replace_file_by_link, replace_directory_by_link, replace_file_by_pipe,
    replace_checkpoint_by_file,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_renamed_and_the_previous_one_is_used(made, damage):
    write(made, 10)
    reason = damage(write(made, 20))
    with pytest.warns(UserWarning, match=rf"00020 is damaged: it .*({reason}).* damaged-00020; 00010 is used instead"):
        assert made.latest().iteration == 10
    assert (made.folder / "damaged-00020").exists()
    assert not (made.folder / "00020").exists()
    assert made.latest().iteration == 10  # no second warning


def test_a_state_that_is_not_an_object_is_damage(made):
    path = write(made, 10)
    (path / "state.json").write_text("[]")
    change_manifest(path, files={**change_manifest(path), "state.json": _manifest_entry(path / "state.json")})
    with pytest.warns(UserWarning, match=r"state\.json .*object.*no other checkpoint"):
        assert made.latest() is None


def _manifest_entry(path):
    return {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_damaged_checkpoints_are_neither_counted_nor_deleted(made):
    for iteration in (10, 20):
        write(made, iteration)
    for _ in range(2):
        truncate_file(write(made, 30))
        with pytest.warns(UserWarning, match="00030 is damaged"):
            made.latest()
    assert names(made.folder) == ["00020", "damaged-00030", "damaged-00030-2"]
    write(made, 30)
    assert names(made.folder) == ["00020", "00030", "damaged-00030", "damaged-00030-2"]


def test_a_damaged_checkpoint_is_renamed_instead_of_removed(made):
    delete_manifest(write(made, 10))
    write(made, 20)
    with pytest.warns(UserWarning, match="00010 is damaged"):
        write(made, 30)
    assert names(made.folder) == ["00020", "00030", "damaged-00010"]


def test_an_earlier_best_is_used_if_the_best_is_damaged(made):
    write(made, 10, best=True)
    change_file(write(made, 20, best=True))
    with pytest.warns(UserWarning, match="00020 is damaged.*00010 is used instead"):
        made.latest()
    assert made.best_iteration() == 10
    truncate_file(made.folder / "00010")
    with pytest.warns(UserWarning, match="no other checkpoint"):
        made.latest()
    assert made.best_iteration() is None


def test_missing_permissions_are_not_damage(made, monkeypatch):
    write(made, 10)

    def refuse(*_arguments, **_options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("hashlib.file_digest", refuse)
    with pytest.raises(CheckpointError, match="00010 cannot be read: Permission denied"):
        made.latest()
    assert names(made.folder) == ["00010"]


def test_a_later_format_version_is_refused_and_left_unchanged(made):
    change_manifest(write(made, 10), version=2)
    with pytest.raises(CheckpointError, match=r"version 2.* up to 1"):
        made.latest()
    assert names(made.folder) == ["00010"]


def test_read_only_access_changes_nothing(made):
    write(made, 10)
    truncate_file(write(made, 20))
    (made.folder / ".00030.partial").mkdir()
    before = names(made.folder)
    reader = Checkpoints(made.folder, keep=1, read_only=True)
    with pytest.warns(UserWarning, match="00020 is damaged.*00010 is used instead"):
        assert reader.latest().iteration == 10
    with pytest.raises(CheckpointError, match="read-only"):
        write(reader, 30)
    assert names(made.folder) == before


def test_interrupted_writes_are_recovered_and_other_files_stay(made):
    write(made, 10)
    (made.folder / "00010").rename(made.folder / ".00010.replaced")
    for name in (".00020.partial", ".00005.removed", ".mine"):
        (made.folder / name).mkdir()
    assert Checkpoints(made.folder, keep=2).latest().iteration == 10
    assert names(made.folder) == [".mine", "00010"]


def full(*_arguments, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_after_a_file(folder):
    (folder / "weights.bin").write_text("half")
    full()


MESSAGE = r"00020 could not be written: No space left on device \(\d+ MB free .* resume the run from checkpoint 00010"


@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_in_save_leaves_earlier_checkpoints_unchanged(made, existing):
    write(made, 10, best=True)
    if existing:
        write(made, 20, content="before")
    before = names(made.folder)
    with pytest.raises(CheckpointError, match=MESSAGE.replace("00010", "00020" if existing else "00010")):
        made.write(20, {}, full_after_a_file)
    assert names(made.folder) == before
    assert made.latest().iteration == (20 if existing else 10)


@pytest.mark.parametrize("failing", range(1, 11))
def test_a_full_disk_at_any_sync_leaves_an_intact_checkpoint(made, monkeypatch, failing):
    write(made, 10, best=True)
    fsync, calls = os.fsync, 0

    def fail_once(handle):
        nonlocal calls
        calls += 1
        full() if calls == failing else fsync(handle)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write(made, 20, best=True)
    monkeypatch.undo()
    assert made.latest().iteration in (10, 20)
    assert not [name for name in names(made.folder) if name.startswith(".")]
    assert write(made, 20, best=True)
    assert made.best_iteration() == 20


def test_a_failed_rename_restores_the_replaced_checkpoint(made, monkeypatch):
    write(made, 20, content="before")
    rename = os.rename

    def fail(source, target, **options):
        full() if str(source).endswith(".partial") else rename(source, target, **options)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(CheckpointError, match="resume the run from checkpoint 00020"):
        write(made, 20, content="after")
    assert (made.latest().path / "weights.bin").read_text() == "before"


def test_a_full_disk_without_earlier_checkpoints_is_reported(made, monkeypatch):
    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(CheckpointError, match=r"No space left.*no earlier checkpoint"):
        write(made, 10)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError])
def test_other_exceptions_of_save_are_not_wrapped(made, error):
    write(made, 10)

    def fail(folder):
        (folder / "weights.bin").write_text("half")
        raise error

    with pytest.raises(error):
        made.write(20, {}, fail)
    assert names(made.folder) == ["00010"]


@pytest.mark.parametrize(
    "save",
    [
        lambda folder: torch.save({"a": torch.zeros(10_000)}, folder / "optimizer.pt"),
        lambda folder: save_file({"a": torch.zeros(10_000)}, folder / "model.safetensors"),
        lambda folder: (folder / "plain").write_bytes(bytes(40_000)),
    ],
    ids=["torch", "safetensors", "plain"],
)
def test_disk_errors_of_all_libraries_are_checkpoint_errors(made, save):
    write(made, 10)
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"00020 could not be written.*resume the run from checkpoint 00010"):
            made.write(20, {}, save)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(made.folder) == ["00010"]


# A process is killed before its n-th disk operation, for every n; the next process recovers the checkpoints.
KILLED = """
import os, pathlib, shutil, signal, sys
from seeupo.runs.checkpoints import Checkpoints

home = pathlib.Path(sys.argv[1])
folder, done = home / "checkpoints", home / "done"
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
PLAN = [(10, True), (20, False), (20, True), (30, False), (40, False), (40, False)]
ours, count, deadly = os.getpid(), 0, 0

def save(content):
    def write(folder):
        (folder / "weights.bin").write_text(content)
        (folder / "critic").mkdir()
        (folder / "critic" / "weights.bin").write_text(content)
    return write

def operation(*arguments):
    global count
    count += 1
    if count == deadly:
        os.kill(os.getpid(), signal.SIGKILL)

def hook(event, arguments):
    if os.getpid() != ours and event in OPERATIONS:
        operation()

def watched_fsync(handle):
    if os.getpid() != ours:
        operation()  # no real fsync: a kill loses nothing that the kernel has, and a busy disk is slow

def work():
    checkpoints = Checkpoints(folder, keep=1)
    log = os.open(done, os.O_WRONLY | os.O_CREAT)
    for step, (iteration, best) in enumerate(PLAN):
        checkpoints.write(iteration, {"step": step}, save(f"step {step}"), best=best)
        os.pwrite(log, str(step + 1).encode(), 0)

os.fsync = watched_fsync
sys.addaudithook(hook)
seen = set()
while True:
    shutil.rmtree(folder, ignore_errors=True)
    done.write_text("0")
    deadly += 1
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    finished = int(done.read_text())  # writes that had returned
    checkpoints = Checkpoints(folder, keep=1)
    left = [path.name for path in folder.iterdir() if path.name.startswith(".")] if folder.exists() else []
    assert not left, (deadly, left)
    latest = checkpoints.latest()
    best = None if checkpoints.best_iteration() is None else checkpoints.find(checkpoints.best_iteration())
    if finished:
        assert latest is not None, deadly
        # The last finished write, or the one that was interrupted.
        assert latest.state["step"] in (finished - 1, finished), (deadly, finished, latest)
        assert (latest.path / "critic" / "weights.bin").read_text() == f"step {latest.state['step']}"
        marked = [step for step in range(latest.state["step"] + 1) if PLAN[step][1]]
        assert best is not None, deadly
        assert best.state["step"] == marked[-1], (deadly, best)
    seen.add((finished, latest and latest.state["step"]))
    # The run can be resumed.
    checkpoints.write(50, {"step": 6}, save("step 6"), best=False)
    assert checkpoints.latest().state["step"] == 6
    if status == 0:
        break
assert {(0, None), (0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (5, 4), (5, 5), (6, 5)} <= seen, seen
print(deadly - 1)
"""


def test_a_process_killed_at_any_moment_leaves_an_intact_checkpoint(tmp_path):
    command = [sys.executable, "-W", "error::UserWarning", "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 100  # number of kills
