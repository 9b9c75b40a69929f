"""Code that options refer to by name: "module:name" or "path/to/file.py:name"."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import reduce
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import seeupo
from seeupo.envs.declare import Role, declares, requirement
from seeupo.errors import EnvError


@dataclass(frozen=True)
class Source:
    """Files of a reference, located without running them.

    Attributes:
        path: The file or package that is imported.
        project: Directory to import it from, with its other modules and data; None for installed packages.
    """

    path: Path
    project: Path | None


def resolve(reference: str, role: Role) -> Any:
    """Import what a reference names; `EnvError` if it cannot be found or does not declare itself for the role."""
    module, name = split(reference)
    try:
        loaded = load_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
    except EnvError:
        raise
    except Exception as error:  # a module may raise anything while it is loaded
        raise EnvError(f"{reference!r}: {module} cannot be loaded: {type(error).__name__}: {error}") from error
    try:
        found = reduce(getattr, name.split("."), loaded)
    except AttributeError:
        raise EnvError(f"{reference!r}: {module} has no {name}") from None
    if not declares(found, role):
        raise EnvError(f"{reference!r} is not usable as {role}: expected {requirement(role)}")
    return found


def split(reference: str) -> tuple[str, str]:
    """Return module or file, and name."""
    module, _, name = reference.rpartition(":")
    if not module or not name:
        raise EnvError(f"{reference!r}: expected 'module:name' or 'path/to/file.py:name'")
    return module, name


def reference_to(factory: object) -> str:
    """Return "module:Class" of a factory object, with which a run records it."""
    kind = type(factory)
    return f"{kind.__module__}:{kind.__qualname__}"


def is_importable(reference: str) -> bool:
    """Return whether another process can import what a reference names: not what a script or function defines."""
    module, _, name = reference.rpartition(":")
    return module != "__main__" and "<locals>" not in name


def canonical(reference: str) -> str:
    """Return the reference with an absolute path if it names a file, so that equal references compare equal."""
    module, _, name = reference.rpartition(":")
    return f"{Path(module).expanduser().absolute()}:{name}" if module.endswith(".py") else reference


def locate(reference: str) -> Source | None:
    """Return where the code of a reference is, without running it; None if it is not found or is built in.

    Modules are searched where Python searches them, then in the current directory.
    """
    module, _ = split(canonical(reference))
    if module.endswith(".py"):
        path: Path | None = Path(module)
    else:
        path = _path_of(_find_spec(module.partition(".")[0]))
    if path is None or not path.exists():
        return None
    return Source(path, None if _is_installed(path) else path.parent)


def packages_for(reference: str) -> list[Path]:
    """Return the packages that must be importable where a reference is used: this one, and that of the reference."""
    own = Path(seeupo.__file__).parent
    source = None if reference.startswith("seeupo.") else locate(reference)
    return [own] if source is None else [own, source.path]


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module, without adding it to `sys.modules`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise EnvError(f"file {path} does not exist")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _find_spec(name: str) -> ModuleSpec | None:
    """Find a top-level module. Finding a submodule would run its package."""
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec, such as __main__
        return None
    return found or PathFinder.find_spec(name, [str(Path.cwd())])


def _path_of(spec: ModuleSpec | None) -> Path | None:
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.has_location else None


def _is_installed(path: Path) -> bool:
    """Return whether a path belongs to the interpreter or its packages."""
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    return "site-packages" in path.parts or any(path.resolve().is_relative_to(prefix) for prefix in prefixes)
