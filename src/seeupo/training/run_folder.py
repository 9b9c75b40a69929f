"""The folder of a run: everything that is needed to look at it, to go on with it and to repeat it.

docs/run-folder.md describes each file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from seeupo.agents.trajectories import write_trajectories
from seeupo.core.checks import check_count
from seeupo.training.checkpoints import Checkpoints
from seeupo.training.whole_files import sync_folder, write_text, written_whole
from seeupo.types import Trajectory

RECIPE, FACTS, METRICS, SUMMARY, LOCK = "recipe.toml", "facts.json", "metrics.jsonl", "summary.json", ".lock"
REPORT = "report.html"
NUMBERED = re.compile(r"([0-9]{5,})\..+")

_locks: set[int] = set()
"""Handles of the locks that this process holds."""


def _forget_locks() -> None:
    for handle in _locks:
        os.close(handle)
    _locks.clear()


# A program that is started does not inherit them. A forked copy of this process would, and would hold on to them.
os.register_at_fork(after_in_child=_forget_locks)


class RunError(Exception):
    """A run cannot be made, opened, locked or written to. The message says why and what to do."""


class RunFolder:
    """The folder of a run; use `create` or `open`.

    Iterations count from 1. What is measured before the first has iteration 0.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._holder: int | None = None  # the process that holds the lock, as a forked copy of it does not

    @classmethod
    def create(cls, path: Path, recipe_toml: str, facts: Mapping[str, Any]) -> RunFolder:
        """Begin a run in a new or empty folder. It appears with recipe and facts in it, or not at all."""
        described = json.dumps(_plain(facts), indent=1, allow_nan=False) + "\n"
        target = path.resolve()
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        occupied = f"{path} holds something already; resume it if it is a run, or name another folder"
        try:
            if target.is_dir() and any(target.iterdir()):
                raise RunError(occupied)
            if files := [each for each in (target, *target.parents) if each.exists() and not each.is_dir()]:
                raise RunError(f"the run {path} cannot be made: {files[0].name} is a file; name another folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.mkdir()
            write_text(partial / FACTS, described)
            write_text(partial / RECIPE, recipe_toml)
            partial.rename(target)
            sync_folder(target.parent)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another process was faster
                raise RunError(occupied) from error
            hint = "name a folder inside it" if error.errno == errno.EBUSY else "name a folder that can be written"
            raise RunError(f"the run {path} cannot be made: {error.strerror or error}; {hint}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A run that was begun before."""
        if not path.is_dir():
            raise RunError(f"{path} is {'a file' if path.exists() else 'not there'}; name the folder of a run")
        if missing := [name for name in (RECIPE, FACTS) if not (path / name).is_file()]:
            raise RunError(f"{path} is no run: it has no {' and no '.join(missing)}; name the folder of a run")
        return cls(path)

    def facts(self) -> dict[str, Any]:
        """What was written when the run began."""
        try:
            return dict(json.loads((self.path / FACTS).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{self.path / FACTS} cannot be read: {error}; put back the file of this run") from error

    @property
    def locked(self) -> bool:
        """Whether this process has locked the run through this object."""
        return self._holder == os.getpid()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Work on the run alone. The lock goes with the process, however it ends."""
        with self.writing(LOCK):
            handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with self.writing(LOCK):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pid = os.pread(handle, 20, 0).decode(errors="replace").strip()
                    who = f"process {pid}" if pid.isdecimal() else "another process"
                    raise RunError(
                        f"{self.path} is being worked on by {who}; wait until it has ended, or end it"
                    ) from None
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(handle)
            raise
        self._holder = os.getpid()
        _locks.add(handle)
        try:
            yield
        finally:
            if self.locked:
                self._holder = None
                _locks.discard(handle)
                # Emptied and not removed: another process may have opened it already, and would lock what is no file.
                with suppress(OSError):
                    os.ftruncate(handle, 0)
                fcntl.flock(handle, fcntl.LOCK_UN)
                os.close(handle)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to the metrics. It is on the disk at the end; what is no number becomes null."""
        if not isinstance(record.get("kind"), str):
            raise ValueError(f"a record has kind {record.get('kind')!r}; it must be a text")
        check_count("iteration", record.get("iteration"), 0)
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
        """All records so far. A last line that an interrupt has cut is left out."""
        return [record for _, record in self._records()]

    def forget_after(self, iteration: int, covers: Callable[[Mapping[str, Any]], bool] | None = None) -> None:
        """Drop what later iterations left, so that a run which goes on from here has neither gaps nor duplicates.

        Args:
            covers: which records stay, where a checkpoint was written in the middle of an iteration; none for those
                up to `iteration`.
        """
        check_count("iteration", iteration, 0)
        path = self.path / METRICS
        covers = covers or (lambda record: bool(record["iteration"] <= iteration))
        kept = b"".join(line for line, record in self._records() if covers(record))
        with self.writing(METRICS):
            if path.exists() and path.read_bytes() != kept:
                with written_whole(path) as partial:
                    partial.write_bytes(kept)
        for folder in (self.path / "trajectories", self.path / "evaluations"):
            with self.writing(folder.name):
                for file in sorted(folder.iterdir()) if folder.is_dir() else ():
                    match = NUMBERED.fullmatch(file.name)
                    if match and (int(match[1]) > iteration or file.suffix == ".partial"):
                        file.unlink()

    def write_trajectories(
        self,
        iteration: int,
        trajectories: Iterable[Trajectory],
        facts: Mapping[str, Any],
        *,
        of: Literal["trajectories", "evaluations"] = "trajectories",
    ) -> None:
        """Write what an iteration trained on, or the episodes of its evaluation; `facts` go into the file's header."""
        check_count("iteration", iteration, 0)
        path = self.path / of / f"{iteration:05d}.jsonl.gz"
        with self.writing(f"{of}/{path.name}"):
            path.parent.mkdir(exist_ok=True)
            with written_whole(path) as partial:
                write_trajectories(partial, trajectories, facts=facts)

    def evaluation_path(self, iteration: int) -> Path:
        """Where the evaluation after that many iterations is written."""
        check_count("iteration", iteration, 0)
        return self.path / "evaluations" / f"{iteration:05d}.json"

    def write_recipe(self, recipe_toml: str) -> None:
        """Replace the recipe, for a run that goes on further than it was begun for."""
        with self.writing(RECIPE):
            write_text(self.path / RECIPE, recipe_toml)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        with self.writing(SUMMARY):
            write_text(self.path / SUMMARY, json.dumps(_plain(summary), indent=1, allow_nan=False) + "\n")

    @property
    def policy_path(self) -> Path:
        """The folder of the trained policy."""
        return self.path / "policy"

    def checkpoints(self, keep: int) -> Checkpoints:
        """The run's checkpoints; to look at only, unless this process holds the lock."""
        return Checkpoints(self.path / "checkpoints", keep, read_only=not self.locked)

    def _records(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Lines of the metrics, each with what it says."""
        path = self.path / METRICS
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
        for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(keepends=True), 1):
            try:
                record = json.loads(line)
                check_count("iteration", record["iteration"], 0)
                yield line, record
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(
                    f"{path}, line {number} is no record ({type(error).__name__}: {error}); take the line out"
                ) from None

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Whoever writes into the run: what goes wrong with the disk becomes a line for people."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path / name} cannot be written: {error.strerror or error}; mend that and resume the run"
            ) from error


def _end_of_lines(file: FileIO) -> int:
    """Where the last whole line of a file ends: at its end, unless an interrupt has cut that line."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    if file.read(1) in (b"", b"\n"):
        return size
    file.seek(0)
    return file.readall().rfind(b"\n") + 1


def _plain(value: Any) -> Any:
    """The same for JSON, which knows no infinity and nothing that is not a number."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
