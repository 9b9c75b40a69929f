import errno
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from seeupo.errors import CheckpointError, RunError
from seeupo.runs.run_directory import RunDirectory
from seeupo.runs.trajectory_files import read_header, read_trajectories
from seeupo.types import Trajectory, Turn


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "[run]\nseed = 0\n", {"panel": "abc"})


def trajectory(name: str) -> Trajectory:
    return Trajectory(name, "g", "t", (Turn(name, 0, (1, 2), (3,), (-0.5,)),), 1.0)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full(*_arguments, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


# Making and opening


def test_a_new_run_directory_holds_recipe_and_env_info(tmp_path):
    path = tmp_path / "new" / "run"
    run = RunDirectory.create(path, "[run]\nseed = 0\n", {"panel": "abc", "odd": math.nan})
    assert (path / "recipe.toml").read_text() == "[run]\nseed = 0\n"
    info = json.loads((path / "env_info.json").read_text())
    assert info == {"format": "seeupo-run", "version": 2, "panel": "abc", "odd": None}
    assert names(path) == ["env_info.json", "recipe.toml"]
    assert names(path.parent) == ["run"]
    assert RunDirectory.open(path).path == run.path == path
    assert run.policy_path == path / "policy"
    assert run.evaluation_path(10) == path / "evaluations" / "00010.json"


@pytest.mark.parametrize("linked", [False, True])
def test_an_empty_directory_can_be_used(tmp_path, linked):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    path = tmp_path / ("link" if linked else "empty")
    assert RunDirectory.create(path, "", {}).metrics() == []
    assert names(tmp_path / "empty") == ["env_info.json", "recipe.toml"]
    assert names(tmp_path) == ["empty", "link"]


def failing_run(run, write):
    with suppress(ZeroDivisionError), run.removed_unless_started(), run.lock():
        write(run)
        raise ZeroDivisionError


@pytest.mark.parametrize("existing", [None, "", "new", "new/run"])
def test_a_failed_start_removes_what_was_created(tmp_path, existing):
    path = tmp_path / "new" / "run"
    if existing is not None:
        (tmp_path / existing).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    failing_run(
        RunDirectory.create(path, "", {}), lambda run: (run.path / "tensorboard" / "events").mkdir(parents=True)
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_has_started_is_kept_after_an_error(tmp_path):
    for number, write in enumerate(
        (
            lambda run: run.append({"kind": "warm_start", "iteration": 0}),
            lambda run: run.write_trajectories(1, [trajectory("a")], {}),
            lambda run: run.checkpoints(1).write(0, {}, lambda path: None),
        )
    ):
        run = RunDirectory.create(tmp_path / str(number), "", {})
        failing_run(run, write)
        assert (run.path / "recipe.toml").exists()


def test_a_directory_that_is_not_empty_is_refused(run):
    before = names(run.path)
    with pytest.raises(RunError, match="already exists and is not empty"):
        RunDirectory.create(run.path, "other", {})
    assert names(run.path) == before
    assert (run.path / "recipe.toml").read_text() == "[run]\nseed = 0\n"


def test_files_in_the_way_are_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / "file" / "deeper" / "run"):
        with pytest.raises(RunError, match="file is a file"):
            RunDirectory.create(path, "", {})
    assert (tmp_path / "file").read_text() == "mine"


def test_a_parent_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def refuse(*_arguments, **_options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(RunError, match=r"cannot create .*Read-only file system"):
        RunDirectory.create(tmp_path / "run", "", {})
    assert names(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "replace", "rename"])
def test_a_full_disk_leaves_no_partial_run(tmp_path, monkeypatch, call):
    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match=r"cannot create .*No space left on device"):
        RunDirectory.create(tmp_path / "run", "", {})
    assert names(tmp_path) == []


def test_one_of_two_concurrent_creations_is_refused(tmp_path, monkeypatch):
    rename, path = os.rename, tmp_path / "run"

    def overtaken(source, target):
        monkeypatch.setattr(os, "rename", rename)
        path.mkdir()
        (path / "recipe.toml").write_text("first")
        rename(source, target)

    monkeypatch.setattr(os, "rename", overtaken)
    with pytest.raises(RunError, match="already exists"):
        RunDirectory.create(path, "second", {})
    assert (path / "recipe.toml").read_text() == "first"
    assert names(tmp_path) == ["run"]


def test_a_parent_that_the_check_of_another_run_removes_is_made_again(tmp_path, monkeypatch):
    """Two runs of a comparison start at the same time, in a folder that is new."""
    mkdir, parent = os.mkdir, tmp_path / "work"

    def overtaken(path, *arguments, **options):
        if Path(path).parent == parent:
            monkeypatch.setattr(os, "mkdir", mkdir)
            parent.rmdir()
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", overtaken)
    RunDirectory.create(parent / "run", "", {})
    assert os.mkdir is mkdir
    assert names(parent) == ["run"]


def test_opening_something_else_than_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="run does not exist"):
        RunDirectory.open(tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file is a file"):
        RunDirectory.open(tmp_path / "file")
    with pytest.raises(RunError, match=r"not a run directory: .*recipe\.toml and no env_info\.json"):
        RunDirectory.open(tmp_path)
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(RunError, match=r"has no env_info\.json"):
        RunDirectory.open(tmp_path)


def test_env_info_can_be_read(run):
    assert run.env_info()["panel"] == "abc"
    for text in ("[1]", "[" * 100_000, '{"version": Infinity}'):
        (run.path / "env_info.json").write_text(text)
        with pytest.raises(RunError, match=r"env_info\.json cannot be read"):
            run.env_info()


def test_another_run_format_is_refused(run):
    (run.path / "env_info.json").write_text('{"version": 99}')
    with pytest.raises(RunError, match=r"run format 99.*Use the version that wrote it"):
        run.env_info()


# The lock

HOLD = """
import os, pathlib, subprocess, sys, time
from seeupo.runs.run_directory import RunDirectory

run = RunDirectory.open(pathlib.Path(sys.argv[1]))
with run.lock():
    if sys.argv[2] == "forked":
        if os.fork() == 0:
            print(os.getpid(), flush=True)  # by the child, which has closed its copy of the lock by then
            os.execvp("sleep", ["sleep", "100"]) if sys.argv[3:] else time.sleep(100)
    else:
        print(subprocess.Popen(["sleep", "100"], close_fds=False).pid, flush=True)
    time.sleep(100)
"""


def test_a_second_process_is_refused_with_the_pid_of_the_first(run):
    with run.lock():
        assert run.locked
        other = RunDirectory.open(run.path)
        with pytest.raises(RunError, match=rf"in use by process {os.getpid()};"), other.lock():
            pass
        assert not other.locked
        with pytest.raises(RunError, match="in use by process"), run.lock():
            pass
        assert run.locked
    assert not run.locked
    with other.lock():
        assert other.locked


def test_a_lock_without_a_recorded_owner_is_respected(run):
    with run.lock():
        (run.path / ".lock-owner").unlink()
        with pytest.raises(RunError, match="in use by another process"), RunDirectory.open(run.path).lock():
            pass


@pytest.mark.parametrize("child", [["started"], ["forked"], ["forked", "then started"]], ids=" ".join)
def test_the_lock_of_a_killed_process_is_free_although_its_child_lives(run, child):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(run.path), *child], stdout=subprocess.PIPE, text=True)
    pid = int(holder.stdout.readline())
    try:
        with pytest.raises(RunError, match=f"in use by process {holder.pid};"), run.lock():
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(pid, 0)  # the child is alive
        with run.lock():
            assert run.locked
    finally:
        os.kill(pid, signal.SIGKILL)
        holder.kill()
        holder.wait()
        holder.stdout.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12 has doubts about fork
def test_a_forked_copy_does_not_hold_the_lock_and_does_not_release_it(run):
    with run.lock():
        child = os.fork()
        if child == 0:
            held = run.locked
            with_handle = [n for n in os.listdir("/proc/self/fd") if _leads_to_lock(n)]  # noqa: PTH208
            os._exit(int(held or bool(with_handle)))
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(RunError, match="in use by"), RunDirectory.open(run.path).lock():
            pass


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12 has doubts about fork
def test_a_forked_copy_that_leaves_the_block_closes_nothing_else(run, tmp_path):
    lock = run.lock()
    lock.__enter__()
    child = os.fork()
    if child == 0:
        # The number of the handle that was closed is given to the next file.
        file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        try:
            os.write(file, b"kept")
            lock.__exit__(None, None, None)
            os._exit(os.fstat(file).st_size != 4)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(RunError, match=f"in use by process {os.getpid()};"), RunDirectory.open(run.path).lock():
        pass
    lock.__exit__(None, None, None)


def _leads_to_lock(handle: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{handle}").endswith("/.lock")  # noqa: PTH115
    except OSError:
        return False


def test_an_error_releases_the_lock(run):
    with pytest.raises(KeyError), run.lock():
        raise KeyError
    with run.lock():
        pass


def test_a_file_system_without_locks_is_a_run_error(run, monkeypatch):
    def refuse(*_arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(RunError, match="No locks available"), run.lock():
        pass


def test_checkpoints_are_written_under_the_lock_only(run):
    with pytest.raises(CheckpointError, match="lock the run"):
        run.checkpoints(2).write(1, {}, lambda folder: None)
    with run.lock():
        run.checkpoints(2).write(1, {"a": 1}, lambda folder: None)
    assert run.checkpoints(2).latest().state == {"a": 1}


# Metrics


def test_records_are_read_back_in_order(run):
    run.append(
        {"kind": "update", "iteration": 1, "z": 0.5, "a": math.nan, "deep": {"b": [math.inf, 1], "c": (-1e400,)}}
    )
    run.append({"kind": "evaluation", "iteration": 1})
    assert run.metrics() == [
        {"kind": "update", "iteration": 1, "z": 0.5, "a": None, "deep": {"b": [None, 1], "c": [None]}},
        {"kind": "evaluation", "iteration": 1},
    ]
    assert list(run.metrics()[0]) == ["kind", "iteration", "z", "a", "deep"]
    assert (run.path / "metrics.jsonl").read_text().count("\n") == 2


def test_a_record_that_json_cannot_hold_writes_nothing(run):
    run.append({"kind": "a", "iteration": 1})
    with pytest.raises(TypeError):
        run.append({"kind": "a", "iteration": 2, "value": object()})
    assert len(run.metrics()) == 1


def test_each_record_is_on_the_disk_when_append_returns(run, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size) or fsync(handle))
    run.append({"kind": "a", "iteration": 1})
    assert (run.path / "metrics.jsonl").stat().st_size in synced


def test_a_truncated_line_is_skipped_and_overwritten(run):
    run.append({"kind": "a", "iteration": 1})
    for torn in ('{"kind": "a", "itera', "\0" * 50):
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(torn)
        assert len(run.metrics()) == 1
    run.append({"kind": "a", "iteration": 2})
    assert [record["iteration"] for record in run.metrics()] == [1, 2]


def test_a_file_with_only_a_truncated_line_is_usable(run):
    (run.path / "metrics.jsonl").write_text("{")
    assert run.metrics() == []
    run.append({"kind": "a", "iteration": 1})
    assert len(run.metrics()) == 1


@pytest.mark.parametrize("line", ["oops", "[" * 100_000, '{"iteration": true}', "[1]"], ids=lambda line: line[:9])
def test_an_invalid_line_is_reported_with_its_number(run, line):
    run.append({"kind": "a", "iteration": 1})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 "):
        run.metrics()


def test_a_full_disk_leaves_no_partial_record(run, monkeypatch):
    run.append({"kind": "a", "iteration": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written: No space left on device"):
        run.append({"kind": "a", "iteration": 2})
    with pytest.raises(RunError, match=r"summary\.json cannot be written: No space left"):
        run.write_summary({})
    with pytest.raises(RunError, match=r"trajectories/00002\.jsonl\.gz cannot be written: No space left"):
        run.write_trajectories(2, [trajectory("a")], {})
    monkeypatch.undo()
    assert (run.path / "metrics.jsonl").read_bytes().count(b"\n") == 1
    assert (run.path / "metrics.jsonl").read_bytes().endswith(b"\n")
    assert names(run.path / "trajectories") == []
    assert not (run.path / "summary.json").exists()


# The other files


def test_trajectories_of_an_iteration_are_replaced_not_appended(run):
    for name in ("a", "b"):
        run.write_trajectories(12, [trajectory(name), trajectory(name * 2)], {"iteration": 12})
    path = run.path / "trajectories" / "00012.jsonl.gz"
    assert [found.id for found in read_trajectories(path)] == ["b", "bb"]
    assert read_header(path)["iteration"] == 12
    assert names(path.parent) == [path.name]


def test_the_summary_is_strict_json(run):
    run.write_summary({"best": math.nan, "iterations": 3})
    assert json.loads((run.path / "summary.json").read_text()) == {"best": None, "iterations": 3}


# Resuming


def up_to(iteration):
    return lambda record: record["iteration"] <= iteration


def test_everything_after_the_checkpoint_is_discarded(run):
    for iteration in range(4):
        run.append({"kind": "evaluation", "iteration": iteration})
        run.append({"kind": "update", "iteration": iteration})
        run.write_trajectories(iteration, [trajectory("a")], {})
        path = run.evaluation_path(iteration)
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    (run.path / "evaluations" / "00001.json.partial").touch()
    (run.path / "evaluations" / "notes.txt").touch()
    kept = (run.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:6]
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "up')

    for _ in range(2):
        run.discard_after(2, up_to(2))
        assert (run.path / "metrics.jsonl").read_bytes() == b"".join(kept)
        assert names(run.path / "trajectories") == [f"0000{n}.jsonl.gz" for n in range(3)]
        assert names(run.path / "evaluations") == ["00000.json", "00001.json", "00002.json", "notes.txt"]
    run.discard_after(0, up_to(0))
    assert [record["iteration"] for record in run.metrics()] == [0, 0]
    assert names(run.path / "evaluations") == ["00000.json", "notes.txt"]


def test_the_caller_can_choose_which_records_stay(run):
    for kind in ("update", "evaluation"):
        run.append({"kind": kind, "iteration": 2})
    run.discard_after(2, lambda record: record["kind"] != "evaluation")
    assert [record["kind"] for record in run.metrics()] == ["update"]


def test_a_truncated_line_of_a_kept_iteration_is_discarded(run):
    run.append({"kind": "a", "iteration": 1})
    before = (run.path / "metrics.jsonl").read_bytes()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "b", "iteration": 1')
    run.discard_after(5, up_to(5))
    assert (run.path / "metrics.jsonl").read_bytes() == before


def test_an_empty_run_has_nothing_to_discard(run):
    run.discard_after(0, up_to(0))
    assert names(run.path) == ["env_info.json", "recipe.toml"]


def test_an_error_while_discarding_loses_no_record(run, monkeypatch):
    for iteration in (1, 2):
        run.append({"kind": "a", "iteration": iteration})
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left"):
        run.discard_after(1, up_to(1))
    assert len(run.metrics()) == 2
