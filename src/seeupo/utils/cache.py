"""The cache directory of downloads and builds: models, Python environments, games."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from seeupo.errors import UserError


def cache_folder() -> Path:
    """Return $SEEUPO_CACHE, or `seeupo` in the user's cache directory."""
    if chosen := os.environ.get("SEEUPO_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seeupo"
    except RuntimeError:
        raise UserError("there is no home directory for the cache; set SEEUPO_CACHE to a writable directory") from None


def make_cache_folder(path: Path) -> None:
    """Create a folder in the cache."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f"the cache directory {path} cannot be written: {error.strerror or error}; "
            "set SEEUPO_CACHE to a writable directory"
        ) from None
