"""Load the functions and classes that options refer to: "module:name" or "path/to/file.py:name"."""

from __future__ import annotations

import importlib
import importlib.util
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from seeupo.errors import EnvError


def resolve(reference: str) -> Any:
    """Return the object that the reference names; `EnvError` if it is malformed or cannot be found."""
    module, _, name = reference.rpartition(":")
    if not module or not name:
        raise EnvError(f"{reference!r}: expected 'module:name' or 'path/to/file.py:name'")
    try:
        loaded = load_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
    except EnvError:
        raise
    except Exception as error:  # a module may raise anything while it is loaded
        raise EnvError(f"{reference!r}: {module} cannot be loaded: {type(error).__name__}: {error}") from error
    try:
        return reduce(getattr, name.split("."), loaded)
    except AttributeError:
        raise EnvError(f"{reference!r}: {module} has no {name}") from None


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module, without adding it to `sys.modules`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise EnvError(f"file {path} does not exist")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
