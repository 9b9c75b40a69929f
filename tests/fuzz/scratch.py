"""A directory for the files of one process, because Hypothesis runs thousands of examples in one test."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def scratch() -> Path:
    """Return the directory; it is removed at exit."""
    folder = Path(tempfile.mkdtemp(prefix="seeupo-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
