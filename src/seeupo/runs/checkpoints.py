"""Checkpoints: one folder each, there whole or not at all, and checked before they are used.

    00010/            what `save` wrote, state.json, and manifest.json with size and checksum of every file
    BEST              the name of the best one, for people and other programs; the manifests say it too
    damaged-00020/    was found damaged; nothing reads it, nothing deletes it
    .00030.partial/   being written;  .00030.replaced/  making room for another of its name;  .00030.removed/  going

Folders that begin with a dot are what a killed process was in the middle of; the next one settles them at its start.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from seeupo.core.checks import check_count
from seeupo.errors import CheckpointError
from seeupo.utils.atomic_files import partial_of, sync_folder, write_text

FORMAT, VERSION = "seeupo-checkpoint", 1
STATE, MANIFEST, BEST = "state.json", "manifest.json", "BEST"
NAME = re.compile(r"[0-9]{5,}")
UNSETTLED = re.compile(r"\.([0-9]{5,})\.(partial|replaced|removed)")

# What a full or failing disk looks like: torch and safetensors have errors of their own for it.
WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)

# Not being able to read is no damage if it may pass, or if it is a question of rights.
NO_DAMAGE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}


class _Damaged(Exception):
    """Something is wrong with a checkpoint; the message ends the sentence "the checkpoint is damaged: it ..."."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole.

    Attributes:
        path: the folder with the files that `save` wrote.
        iteration: how many iterations its state has behind it.
        state: what state.json holds.
    """

    path: Path
    iteration: int
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run, for the one process that works on it.

    Args:
        folder: where they are; made when the first is written.
        keep: how many of the latest stay. The best one stays besides.
        read_only: look without touching, beside the process that works on the run.
    """

    def __init__(self, folder: Path, keep: int, *, read_only: bool = False) -> None:
        check_count("keep", keep, 1)
        self.folder, self.keep, self.read_only = folder, keep, read_only
        if not read_only:
            try:
                self._settle()
                self._name_best()
            except OSError as error:
                raise CheckpointError(f"{folder} cannot be tidied: {_words(error)}; mend that first") from error

    def write(
        self, iteration: int, state: Mapping[str, Any], save: Callable[[Path], None], *, best: bool = False
    ) -> Path:
        """Write the checkpoint of an iteration, then remove those that no longer stay.

        Args:
            state: anything that JSON can hold.
            save: writes files into the folder it is given, nested ones too.
            best: this is the best one so far.

        Until the new one is whole and on the disk, the earlier ones are untouched, one of the same iteration included.
        """
        check_count("iteration", iteration, 0)
        if self.read_only:
            raise CheckpointError(f"{self.folder} was opened to look only; lock the run first, then open it again")
        text = json.dumps(state, indent=1)
        final = self.folder / _name(iteration)
        partial = self.folder / f".{final.name}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._settle()
            partial.mkdir()
            save(partial)
            for name in (STATE, MANIFEST):
                if (partial / name).exists():
                    raise ValueError(f"save wrote {name}, which is the name of a file of the checkpoint itself")
            (partial / STATE).write_text(text + "\n", encoding="utf-8")
            _seal(partial, iteration, best)
            self._put(partial, final)
        except BaseException as error:
            free = _free(self.folder)
            with suppress(OSError):
                self._settle()
            if isinstance(error, WRITE_ERRORS):
                raise CheckpointError(self._failure(final, error, free)) from error
            raise
        try:
            self._name_best()
            self._prune()
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {final} is whole, but {BEST} could not be updated or older ones not removed "
                f"({_words(error)}; {_free(self.folder)} free); the run can go on from it"
            ) from error
        return final

    def latest(self) -> Checkpoint | None:
        """The newest that is whole. Damaged ones on the way to it are put aside, with a warning."""
        return self._first_whole(sorted(self._found(), reverse=True))

    def best(self) -> Checkpoint | None:
        """The newest whole one that was the best when it was written; None if there is none, or none left."""
        return self._first_whole(self._bests())

    def _found(self) -> dict[int, Path]:
        if not self.folder.is_dir():
            return {}
        return {int(path.name): path for path in self.folder.iterdir() if NAME.fullmatch(path.name)}

    def _bests(self) -> list[int]:
        """Those marked as best, the newest first. One whose manifest cannot be read has no mark."""
        marked = []
        for iteration, path in sorted(self._found().items(), reverse=True):
            with suppress(_Damaged):
                if _manifest(path)["best"]:
                    marked.append(iteration)
        return marked

    def _first_whole(self, iterations: Sequence[int]) -> Checkpoint | None:
        found, whole, damaged = self._found(), None, []
        for iteration in iterations:
            try:
                whole = Checkpoint(found[iteration], iteration, _check(found[iteration]))
                break
            except _Damaged as error:
                damaged.append((found[iteration], error))
        used = "none is left to be used instead" if whole is None else f"{whole.path.name} is used instead"
        said = [f"{self._put_aside(path, error)}; {used}" for path, error in damaged]
        for message in said:
            warnings.warn(message, stacklevel=3)
        return whole

    def _put_aside(self, path: Path, error: _Damaged) -> str:
        """Rename a damaged one, so that it is neither used nor counted. Returns what to tell people."""
        message = f"the checkpoint {path} is damaged: it {error}"
        if self.read_only:
            return message
        names = (f"damaged-{path.name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 10_000))))
        aside = next(self.folder / name for name in names if not os.path.lexists(self.folder / name))
        try:
            path.rename(aside)
            self._name_best()
        except OSError as trouble:
            return f"{message} (and cannot be put aside: {_words(trouble)})"
        return f"{message}. It is now {aside.name}"

    def _put(self, partial: Path, final: Path) -> None:
        """Give a whole checkpoint its name. A killed process leaves at least one of old and new under a known name."""
        replaced = self.folder / f".{final.name}.replaced"
        if os.path.lexists(final):
            final.rename(replaced)
        partial.rename(final)
        sync_folder(self.folder)
        sync_folder(self.folder.parent)  # the folder itself may be new
        if os.path.lexists(replaced):
            _remove(replaced)

    def _settle(self) -> None:
        """Finish or undo what an interrupted write left."""
        if not self.folder.is_dir():
            return
        partial_of(self.folder / BEST).unlink(missing_ok=True)
        for path in sorted(self.folder.iterdir()):
            if match := UNSETTLED.fullmatch(path.name):
                final = self.folder / match[1]
                if match[2] == "replaced" and not os.path.lexists(final):
                    path.rename(final)
                else:
                    _remove(path)

    def _name_best(self) -> None:
        """Let BEST say what the manifests say."""
        path, bests = self.folder / BEST, self._bests()
        if not bests:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text(errors="replace") != f"{_name(bests[0])}\n":
            write_text(path, f"{_name(bests[0])}\n")

    def _prune(self) -> None:
        found = self._found()
        stay = {*sorted(found)[-self.keep :], *self._bests()[:1]}
        said = []
        for iteration in sorted(found.keys() - stay):
            path = found[iteration]
            try:
                _manifest(path)
            except _Damaged as error:
                said.append(self._put_aside(path, error))
                continue
            # Renamed first: a killed process must not leave half of it under its name.
            going = self.folder / f".{path.name}.removed"
            path.rename(going)
            _remove(going)
        for message in said:
            warnings.warn(message, stacklevel=3)

    def _failure(self, final: Path, error: Exception, free: str) -> str:
        left = sorted(self._found())
        rest = f"the run can go on from checkpoint {_name(left[-1])}" if left else "there is no earlier checkpoint"
        return (
            f"the checkpoint {final} could not be written: {_words(error)} ({free} free at that moment); what there "
            f"was of it is removed. Make room or mend the disk; {rest}"
        )


def _name(iteration: int) -> str:
    return f"{iteration:05d}"


def _seal(folder: Path, iteration: int, best: bool) -> None:
    """Write the manifest, and wait until everything is on the disk."""
    files = {name: _measure(folder / name) for name in sorted(_files(folder))}
    manifest = {"format": FORMAT, "version": VERSION, "iteration": iteration, "best": best, "files": files}
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    for inner, _, _ in os.walk(folder, topdown=False):
        sync_folder(Path(inner))


def _measure(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return {"size": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _files(folder: Path) -> Iterator[str]:
    """Everything below a folder that is no folder, by its path from there."""

    def fail(error: OSError) -> None:
        raise error

    for inner, folders, files in os.walk(folder, onerror=fail):
        links = [name for name in folders if (Path(inner) / name).is_symlink()]
        yield from ((Path(inner) / name).relative_to(folder).as_posix() for name in [*files, *links])


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r}")
        if manifest["version"] > VERSION:
            raise CheckpointError(
                f"the checkpoint {folder} is of version {manifest['version']} and this program reads up to {VERSION}; "
                "use the version of seeupo that wrote it"
            )
        if manifest["iteration"] != int(folder.name):
            raise ValueError(f"it is of iteration {manifest['iteration']}")
        if not isinstance(manifest["best"], bool):
            raise ValueError(f"best is {manifest['best']!r}")
        if any(not {"size", "sha256"} <= entry.keys() for entry in manifest["files"].values()):
            raise ValueError("a file has no size or no checksum")
    except FileNotFoundError:
        raise _Damaged(f"has no {MANIFEST}") from None
    except OSError as error:
        raise _unreadable(folder, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Damaged(f"has a {MANIFEST} that makes no sense ({type(error).__name__}: {error})") from None
    return dict(manifest)


def _check(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint whose every file is as it was written."""
    listed = _manifest(folder)["files"]
    try:
        # A path that leads out of the folder is never among those found in it, so that it is never opened.
        present = set(_files(folder)) - {MANIFEST}
        if missing := sorted({STATE, *listed} - present):
            raise _Damaged(f"lacks the file {missing[0]!r}")
        if unlisted := sorted(present - set(listed)):
            raise _Damaged(f"has a file {unlisted[0]!r} that its manifest does not list")
        for name, entry in listed.items():
            path = folder / name
            if not stat.S_ISREG(path.lstat().st_mode):
                raise _Damaged(f"has {name!r}, which is a link or a device in place of a file")
            if path.lstat().st_size != entry["size"]:
                raise _Damaged(f"has {name!r} of {path.lstat().st_size} bytes in place of {entry['size']}")
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                    raise _Damaged(f"has {name!r} with another checksum than it was written with")
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(folder, error) from None
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"has a {STATE} that makes no sense ({error})") from None
    if not isinstance(state, dict):
        raise _Damaged(f"has a {STATE} that is no table")
    return state


def _unreadable(folder: Path, error: OSError) -> Exception:
    if error.errno in NO_DAMAGE:
        return CheckpointError(
            f"the checkpoint {folder} cannot be read: {_words(error)}; it may be whole, so mend that"
        )
    return _Damaged(f"cannot be read ({_words(error)})")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _words(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"


def _free(folder: Path) -> str:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.0f} MB"
    except OSError:
        return "an unknown number of MB"
