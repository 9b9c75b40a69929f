"""Functions and classes that an option names: "module:name", or "path/to/file.py:name" for a file of one's own."""

from __future__ import annotations

import importlib
import importlib.util
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from seeupo.errors import EnvError


def resolve(reference: str) -> Any:
    """What the reference names. `EnvError` if it is malformed, or if the module, file or name is not there."""
    module, _, name = reference.rpartition(":")
    if not module or not name:
        raise EnvError(f"{reference!r} should be written as 'module:name' or 'path/to/file.py:name'")
    try:
        loaded = load_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
    except EnvError:
        raise
    except Exception as error:  # whatever the module does while it is loaded
        raise EnvError(f"{reference!r}: {module} cannot be loaded: {type(error).__name__}: {error}") from error
    try:
        return reduce(getattr, name.split("."), loaded)
    except AttributeError:
        raise EnvError(f"{reference!r}: there is no {name} in {module}") from None


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module of its own, which is not entered among the imported ones."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise EnvError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
