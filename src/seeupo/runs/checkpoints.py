"""Checkpoints: one directory each, written atomically and verified before use.

    00010/            the files of `save`, state.json, and manifest.json with size and checksum of every file and a mark
                      of the best checkpoint
    damaged-00020/    found damaged; never read, never deleted
    .00030.partial/   being written;  .00030.replaced/  being replaced;  .00030.removed/  being removed

Directories that start with a dot are left by a killed process; the next process finishes or undoes its work.
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

from seeupo.errors import CheckpointError
from seeupo.utils.atomic_files import sync_folder, write_text
from seeupo.utils.plain_files import read_plain

FORMAT, VERSION = "seeupo-checkpoint", 1
STATE = "state.json"
MANIFEST = "manifest.json"
NAME = re.compile(r"[0-9]{5,}")
LEFTOVER = re.compile(r"\.([0-9]{5,})\.(partial|replaced|removed)")

# Errors of a full or failing disk: torch and safetensors raise their own types.
WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)

# Read errors that say nothing about the checkpoint: missing permissions, or temporary conditions.
NOT_DAMAGE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}


class _DamageError(Exception):
    """A checkpoint is damaged; the message completes "the checkpoint is damaged: it ..."."""


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint.

    Attributes:
        path: Directory with the files that `save` wrote.
        iteration: Number of finished iterations.
        state: Content of state.json.
    """

    path: Path
    iteration: int
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run. Only one process may write to them.

    Args:
        folder: Directory of the checkpoints; created with the first one.
        keep: Number of latest checkpoints to keep, besides the best one.
        read_only: Change nothing, so that another process may train the run at the same time.
    """

    def __init__(self, folder: Path, keep: int, *, read_only: bool = False) -> None:
        self.folder = folder
        self.keep = keep
        self.read_only = read_only
        if not read_only:
            try:
                self._recover()
            except OSError as error:
                raise CheckpointError(
                    f"cannot clean up {folder} after an interrupted write: {_reason(error)}. "
                    "Check permissions and free disk space."
                ) from error

    def write(
        self, iteration: int, state: Mapping[str, Any], save: Callable[[Path], None], *, best: bool = False
    ) -> Path:
        """Write the checkpoint of an iteration, then remove those beyond `keep`.

        Until the new one is complete and on the disk, earlier ones stay untouched, even one of the same iteration.

        Args:
            state: JSON-compatible values.
            save: Writes files into the given directory; subdirectories are allowed.
            best: Whether this is the best checkpoint so far.
        """
        if self.read_only:
            raise CheckpointError(f"{self.folder} was opened read-only; lock the run before opening it to write")
        text = json.dumps(state, indent=1)
        final = self.folder / f"{iteration:05d}"
        partial = self.folder / f".{final.name}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._recover()
            partial.mkdir()
            save(partial)
            (partial / STATE).write_text(text + "\n", encoding="utf-8")
            _write_manifest(partial, iteration, best)
            self._publish(partial, final)
        except BaseException as error:
            free = _free(self.folder)
            with suppress(OSError):
                self._recover()
            if isinstance(error, WRITE_ERRORS):
                names = sorted(self._paths())
                rest = f"resume the run from checkpoint {names[-1]:05d}" if names else "there is no earlier checkpoint"
                raise CheckpointError(
                    f"the checkpoint {final} could not be written: {_reason(error)} ({free} free at that moment); its "
                    f"partial files are removed. Free disk space or check the disk; {rest}"
                ) from error
            raise
        try:
            self._prune()
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {final} is complete, but removing old checkpoints failed ({_reason(error)}; "
                f"{_free(self.folder)} free). The run can be resumed from it."
            ) from error
        return final

    def latest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint. Damaged ones that are newer are renamed, with a warning."""
        intact = None
        damaged = []
        for iteration, path in sorted(self._paths().items(), reverse=True):
            try:
                intact = Checkpoint(path, iteration, _read_verified(path))
                break
            except _DamageError as error:
                damaged.append((path, error))
        used = "no other checkpoint is left" if intact is None else f"{intact.path.name} is used instead"
        self._warn([f"{self._set_aside(path, error)}; {used}" for path, error in damaged])
        return intact

    def best_iteration(self) -> int | None:
        """Return the newest iteration that is marked as the best; None if there is none.

        Files are not verified, but a checkpoint with an unreadable manifest has no mark.
        """
        for iteration, path in sorted(self._paths().items(), reverse=True):
            with suppress(_DamageError):
                if _read_manifest(path)["best"]:
                    return iteration
        return None

    def find(self, iteration: int) -> Checkpoint:
        """Return the checkpoint of an iteration. One that is missing or damaged is an error, and stays in place."""
        paths = self._paths()
        if iteration not in paths:
            available = ", ".join(map(str, sorted(paths))) or "none"
            raise CheckpointError(f"{self.folder} has no checkpoint {iteration}; available: {available}")
        path = paths[iteration]
        try:
            return Checkpoint(path, iteration, _read_verified(path))
        except _DamageError as error:
            raise CheckpointError(f"the checkpoint {path} is damaged: it {error}; choose another one") from None

    def _paths(self) -> dict[int, Path]:
        if not self.folder.is_dir():
            return {}
        return {int(path.name): path for path in self.folder.iterdir() if NAME.fullmatch(path.name)}

    def _set_aside(self, path: Path, error: _DamageError) -> str:
        """Rename a damaged checkpoint, so that it is neither used nor counted, and return a message."""
        message = f"the checkpoint {path} is damaged: it {error}"
        if self.read_only:
            return message
        aside = self.folder / f"damaged-{path.name}"
        number = 1
        while os.path.lexists(aside):
            number += 1
            aside = self.folder / f"damaged-{path.name}-{number}"
        try:
            path.rename(aside)
        except OSError as failure:
            return f"{message} (and cannot be renamed: {_reason(failure)})"
        return f"{message}. It was renamed to {aside.name}"

    def _publish(self, partial: Path, final: Path) -> None:
        """Rename a complete checkpoint to its name. A killed process leaves the old or the new one recoverable."""
        replaced = self.folder / f".{final.name}.replaced"
        if os.path.lexists(final):
            final.rename(replaced)
        partial.rename(final)
        sync_folder(self.folder)
        sync_folder(self.folder.parent)  # the directory of checkpoints may be new
        if os.path.lexists(replaced):
            _remove(replaced)

    def _recover(self) -> None:
        """Finish or undo an interrupted write."""
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            if match := LEFTOVER.fullmatch(path.name):
                final = self.folder / match[1]
                if match[2] == "replaced" and not os.path.lexists(final):
                    path.rename(final)
                else:
                    _remove(path)

    def _prune(self) -> None:
        paths = self._paths()
        kept = {*sorted(paths)[-self.keep :], self.best_iteration()}
        messages = []
        for iteration in sorted(paths.keys() - kept):
            path = paths[iteration]
            try:
                _read_manifest(path)
            except _DamageError as error:
                messages.append(self._set_aside(path, error))
                continue
            # Renamed first: a killed process must not leave half of a checkpoint under its name.
            removed = self.folder / f".{path.name}.removed"
            path.rename(removed)
            _remove(removed)
        self._warn(messages)

    def _warn(self, messages: Sequence[str]) -> None:
        """Warn when all damaged checkpoints are renamed: a warning may raise."""
        for message in messages:
            warnings.warn(message, stacklevel=4)


def _write_manifest(folder: Path, iteration: int, best: bool) -> None:
    """Write the manifest, and wait until all files are on the disk."""
    files = {name: _manifest_entry(folder / name) for name in sorted(_files(folder))}
    manifest = {"format": FORMAT, "version": VERSION, "iteration": iteration, "best": best, "files": files}
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    for inner, _, _ in os.walk(folder, topdown=False):
        sync_folder(Path(inner))


def _manifest_entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return {"size": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _files(folder: Path) -> Iterator[str]:
    """Yield the relative path of every file and symbolic link below a directory."""

    def fail(error: OSError) -> None:
        raise error

    for inner, folders, files in os.walk(folder, onerror=fail):
        links = [name for name in folders if (Path(inner) / name).is_symlink()]
        yield from ((Path(inner) / name).relative_to(folder).as_posix() for name in [*files, *links])


def _read_manifest(folder: Path) -> dict[str, Any]:
    if folder.is_symlink():
        raise _DamageError("is a symbolic link")
    try:
        manifest = json.loads(read_plain(folder / MANIFEST))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r}")
        if manifest["version"] > VERSION:
            raise CheckpointError(
                f"the checkpoint {folder} has format version {manifest['version']}; this version of seeupo reads up to "
                f"{VERSION}. Use the version that wrote it."
            )
        if manifest["iteration"] != int(folder.name):
            raise ValueError(f"iteration {manifest['iteration']}")
        if not isinstance(manifest["best"], bool):
            raise ValueError(f"best is {manifest['best']!r}")
        if any(not {"size", "sha256"} <= entry.keys() for entry in manifest["files"].values()):
            raise ValueError("a file without size or checksum")
    except FileNotFoundError:
        raise _DamageError(f"has no {MANIFEST}") from None
    except OSError as error:
        raise _unreadable(folder, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _DamageError(f"has an invalid {MANIFEST} ({type(error).__name__}: {error})") from None
    return dict(manifest)


def _read_verified(folder: Path) -> dict[str, Any]:
    """Return the state of a checkpoint after verifying that every file is as it was written."""
    listed = _read_manifest(folder)["files"]
    try:
        # Paths that lead out of the directory are never among those found in it, so they are never opened.
        present = set(_files(folder)) - {MANIFEST}
        if missing := sorted({STATE, *listed} - present):
            raise _DamageError(f"has no file {missing[0]!r}")
        if unlisted := sorted(present - set(listed)):
            raise _DamageError(f"has a file {unlisted[0]!r} that its manifest does not list")
        for name, entry in listed.items():
            path = folder / name
            if not stat.S_ISREG(path.lstat().st_mode):
                raise _DamageError(f"has {name!r}, which is not a regular file")
            if path.lstat().st_size != entry["size"]:
                raise _DamageError(f"has {name!r} with {path.lstat().st_size} bytes instead of {entry['size']}")
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                    raise _DamageError(f"has {name!r} with a different checksum")
        state = json.loads(read_plain(folder / STATE))
    except OSError as error:
        raise _unreadable(folder, error) from None
    except (ValueError, RecursionError) as error:
        raise _DamageError(f"has an invalid {STATE} ({error})") from None
    if not isinstance(state, dict):
        raise _DamageError(f"has a {STATE} that is not a JSON object")
    return state


def _unreadable(folder: Path, error: OSError) -> Exception:
    if error.errno in NOT_DAMAGE:
        return CheckpointError(
            f"the checkpoint {folder} cannot be read: {_reason(error)}. It may be intact; fix this and try again."
        )
    return _DamageError(f"cannot be read ({_reason(error)})")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"


def _free(folder: Path) -> str:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.0f} MB"
    except OSError:
        return "unknown space"
