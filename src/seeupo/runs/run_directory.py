"""The run directory: everything needed to inspect, resume and repeat a run.

docs/reference/run-directory.md describes each file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from seeupo.errors import RunError
from seeupo.runs.checkpoints import Checkpoints
from seeupo.runs.trajectory_files import read_trajectories, write_trajectories
from seeupo.types import Trajectory
from seeupo.utils import plain_files
from seeupo.utils.atomic_files import atomic_write, partial_folder, sync_folder, write_text
from seeupo.utils.option_checks import check_count
from seeupo.utils.plain_files import read_plain

RECIPE = "recipe.toml"
ENV_INFO = "env_info.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
STOPPED = "stopped.json"
LOCK = ".lock"
REPORT = "report.html"
POLICY = "policy"
TRAJECTORIES = "trajectories"
EVALUATIONS = "evaluations"
CHECKPOINTS = "checkpoints"
TRACKERS = ("tensorboard", "wandb")
FORMAT, VERSION = "seeupo-run", 2
NUMBERED = re.compile(r"([0-9]{5,})\..+")


class RunDirectory:
    """The directory of a run; use `create` or `open`.

    Iterations are counted from 1. Records from before the first have iteration 0.
    """

    def __init__(self, path: Path, *, created: Sequence[Path] = ()) -> None:
        self.path = path
        self._created = created
        self._lock = FileLock(path / LOCK, timeout=0)

    @classmethod
    def create(cls, path: Path, recipe_toml: str, env_info: Mapping[str, Any]) -> RunDirectory:
        """Start a run in a new or empty directory, which appears complete with recipe and env_info or not at all."""
        described = _json_text({"format": FORMAT, "version": VERSION, **env_info})
        with _creating(path) as (partial, created):
            write_text(partial / ENV_INFO, described)
            write_text(partial / RECIPE, recipe_toml)
            partial.rename(path.resolve())
            sync_folder(partial.parent)
        return cls(path, created=created)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an existing run."""
        if not path.is_dir():
            raise RunError(f"{path} {'is a file' if path.exists() else 'does not exist'}; expected a run directory")
        refuse_links(path)
        if missing := [name for name in (RECIPE, ENV_INFO) if not (path / name).is_file()]:
            raise RunError(f"{path} is not a run directory: it has no {' and no '.join(missing)}")
        return cls(path)

    @property
    def started(self) -> bool:
        """True if the run has written anything besides recipe and env_info: a record, a trajectory or a checkpoint."""
        folders = (TRAJECTORIES, EVALUATIONS, CHECKPOINTS)
        return (self.path / METRICS).exists() or any(any((self.path / name).glob("*")) for name in folders)

    @contextmanager
    def removed_unless_started(self) -> Iterator[None]:
        """Remove what `create` made if an error ends the run before it has started."""
        try:
            yield
        except Exception:
            if not self.started:
                with suppress(OSError):
                    for path in self.path.iterdir():
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                    for folder in self._created:
                        folder.rmdir()
            raise

    def env_info(self) -> dict[str, Any]:
        """Return versions, hardware, task panel, and the recipe with its changes since the run started."""
        path = self.path / ENV_INFO
        try:
            info = dict(json.loads(read_plain(path)))
            version = int(info["version"])
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise RunError(f"{path} cannot be read: {error}; restore the file of this run") from error
        if version != VERSION:
            raise RunError(
                f"{self.path} has run format {version}; this version of seeupo reads {VERSION}. Use the version that "
                "wrote it."
            )
        return info

    def recorded_recipe(self) -> dict[str, Any]:
        """Return the recipe that the run has used so far, as tables."""
        recipe = self.env_info().get("recipe")
        if not isinstance(recipe, dict):
            raise RunError(f"{self.path / ENV_INFO}: recipe is not a table; restore the file of this run")
        return recipe

    @property
    def locked(self) -> bool:
        """True if this object holds the lock of the run."""
        return self._lock.is_locked

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run's lock. It is released when the process ends, even if it is killed."""
        owner = self.path / f"{LOCK}-owner"
        with self.writing(LOCK):
            try:
                if self._lock.is_locked:  # a FileLock could be acquired twice
                    raise Timeout(str(self.path / LOCK))
                self._lock.acquire()
            except Timeout:
                pid = owner.read_text(errors="replace").strip() if owner.is_file() else ""
                who = f"process {pid}" if pid.isdecimal() else "another process"
                raise RunError(f"{self.path} is in use by {who}; wait until it has ended, or stop it") from None
        try:
            with suppress(OSError):  # only for the message above
                owner.write_text(f"{os.getpid()}\n")
            yield
        finally:
            if self.locked:  # a forked copy of this process does not hold it
                with suppress(OSError):
                    owner.unlink(missing_ok=True)
                self._lock.release()

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a line to the metrics, synced to disk; numbers that are not finite become null."""
        line = json.dumps(_plain(record), allow_nan=False).encode() + b"\n"
        # Without a buffer, which would be written again when the file is closed after an error.
        with self.writing(METRICS), (self.path / METRICS).open("a+b", buffering=0) as file:
            end = _end_of_lines(file)
            file.truncate(end)
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise
        if end == 0:
            sync_folder(self.path)

    def metrics(self) -> list[dict[str, Any]]:
        """Return all records so far; a last line that an interrupt has cut off is left out."""
        return [record for _, record in self._lines_and_records()]

    def discard_after(self, iteration: int, covers: Callable[[Mapping[str, Any]], bool]) -> None:
        """Remove what later iterations wrote, so that a resumed run has neither gaps nor duplicates.

        Args:
            covers: Which records stay; a checkpoint may have been written in the middle of an iteration.
        """
        path = self.path / METRICS
        kept = b"".join(line for line, record in self._lines_and_records() if covers(record))
        with self.writing(METRICS):
            if path.exists() and path.read_bytes() != kept:
                with atomic_write(path) as partial:
                    partial.write_bytes(kept)
        for folder in (self.path / TRAJECTORIES, self.path / EVALUATIONS):
            with self.writing(folder.name):
                for file in sorted(folder.iterdir()) if folder.is_dir() else ():
                    match = NUMBERED.fullmatch(file.name)
                    if match and (int(match[1]) > iteration or file.suffix == ".partial"):
                        file.unlink()

    def write_trajectories(
        self,
        iteration: int,
        trajectories: Iterable[Trajectory],
        header: Mapping[str, Any],
        *,
        of: Literal["trajectories", "evaluations"] = "trajectories",
    ) -> None:
        """Write the trajectories of an iteration, or of its evaluation; `header` is added to the file's header."""
        path = self.path / of / f"{iteration:05d}.jsonl.gz"
        with self.writing(f"{of}/{path.name}"):
            path.parent.mkdir(exist_ok=True)
            with atomic_write(path) as partial:
                write_trajectories(partial, trajectories, header=header)

    def read_trajectories(self, iteration: int) -> Iterator[Trajectory]:
        """Yield the trajectories of an iteration; none if they were not written, as before the first one."""
        path = self.path / TRAJECTORIES / f"{iteration:05d}.jsonl.gz"
        if path.exists():
            yield from read_trajectories(path)

    def evaluation_path(self, iteration: int) -> Path:
        """Return the result file of the evaluation after `iteration` iterations."""
        return self.path / EVALUATIONS / f"{iteration:05d}.json"

    def evaluations(self) -> list[int]:
        """Return the iterations with a result file of an evaluation."""
        files = (self.path / EVALUATIONS).glob("*.json")
        return [int(match[1]) for file in files if (match := NUMBERED.fullmatch(file.name))]

    def record_changes(self, recipe_toml: str, recipe: Mapping[str, Any], changes: Iterable[Mapping[str, Any]]) -> None:
        """Replace the recipe of a run that is resumed with other settings, and add the changes to the env_info."""
        info = self.env_info()
        info["recipe"], info["changes"] = recipe, [*info.get("changes", ()), *changes]
        with self.writing(RECIPE):
            write_text(self.path / RECIPE, recipe_toml)
        with self.writing(ENV_INFO):
            write_text(self.path / ENV_INFO, _json_text(info))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        with self.writing(SUMMARY):
            write_text(self.path / SUMMARY, _json_text(summary))

    def write_stopped(self, iteration: int) -> None:
        """Record that the user stopped the run after an iteration, until it is resumed."""
        with self.writing(STOPPED):
            write_text(self.path / STOPPED, _json_text({"iteration": iteration}))

    def clear_stopped(self) -> None:
        with self.writing(STOPPED):
            (self.path / STOPPED).unlink(missing_ok=True)

    @property
    def policy_path(self) -> Path:
        """The folder of the trained policy."""
        return self.path / POLICY

    def checkpoints(self, keep: int = 1) -> Checkpoints:
        """Return the run's checkpoints; read-only unless this object holds the lock, and `keep` is then unused."""
        return Checkpoints(self.path / CHECKPOINTS, keep, read_only=not self.locked)

    def checkpoint_number(self, which: int | Literal["best"]) -> int:
        """Return the iteration of a checkpoint that is chosen by number, which need not exist, or as "best"."""
        if which != "best":
            return which
        best = self.checkpoints().best_iteration()
        if best is None:
            raise RunError(f"{self.path} has no checkpoint marked as the best; choose one by its number")
        return best

    def _lines_and_records(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield the lines of the metrics, each with its record."""
        path = self.path / METRICS
        try:
            content = read_plain(path) if path.exists() else b""
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
        for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(keepends=True), 1):
            try:
                record = json.loads(line)
                check_count("iteration", record["iteration"], 0)
                yield line, record
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise RunError(
                    f"{path}, line {number} is not a record ({type(error).__name__}: {error}); remove the line"
                ) from None

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Turn disk errors while writing `name` into a `RunError`."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path / name} cannot be written: {error.strerror or error}; fix that and resume the run"
            ) from error


def check_new_run(path: Path) -> None:
    """Raise if a run cannot be created in this directory; nothing is left there."""
    with _creating(path) as (_, created):
        pass
    for folder in created[1:]:  # the first is the run itself
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def _creating(path: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Make a temporary folder beside a new run; yield it and all folders that do not exist yet, the run's first."""
    target = path.resolve()
    occupied = f"{path} already exists and is not empty; resume it if it is a run, or choose another directory"
    try:
        if target.is_dir() and any(target.iterdir()):
            raise RunError(occupied)
        if files := [place for place in (target, *target.parents) if place.exists() and not place.is_dir()]:
            raise RunError(f"cannot create the run {path}: {files[0].name} is a file; choose another directory")
        created = [folder for folder in (target, *target.parents) if not folder.exists()]
        with partial_folder(target) as partial:
            yield partial, created
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another process was faster
            raise RunError(occupied) from error
        hint = "choose a directory inside it" if error.errno == errno.EBUSY else "choose a writable directory"
        raise RunError(f"cannot create the run {path}: {error.strerror or error}; {hint}") from error


def refuse_links(run_dir: Path) -> None:
    """Raise if a part of a run directory is a symbolic link, through which a run would read or change other files.

    The directory itself may be one. Checkpoints are verified file by file when they are loaded.
    """
    parts = [RECIPE, ENV_INFO, METRICS, SUMMARY, STOPPED, LOCK, f"{LOCK}-owner"]
    paths = [run_dir / name for name in (*parts, TRAJECTORIES, EVALUATIONS, CHECKPOINTS, POLICY, *TRACKERS)]
    for name in (TRAJECTORIES, EVALUATIONS, POLICY):
        with suppress(OSError):
            paths += sorted((run_dir / name).iterdir())
    plain_files.refuse_links(paths, place="a run directory")


def _end_of_lines(file: FileIO) -> int:
    """Return where the last complete line of a file ends."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    if file.read(1) in (b"", b"\n"):
        return size
    file.seek(0)
    return file.readall().rfind(b"\n") + 1


def _json_text(table: Mapping[str, Any]) -> str:
    return json.dumps(_plain(table), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Return a value for JSON, which has no infinities and no NaN."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
