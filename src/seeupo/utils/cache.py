"""The folder in which everything is kept that is fetched or built once: models, interpreters of environments, games."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SEEUPO_CACHE, else seeupo in the user's cache folder."""
    if chosen := os.environ.get("SEEUPO_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seeupo"
