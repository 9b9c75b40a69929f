"""The cache directory of downloads and builds: models, Python environments, games."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $SEEUPO_CACHE, or `seeupo` in the user's cache directory."""
    if chosen := os.environ.get("SEEUPO_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seeupo"
