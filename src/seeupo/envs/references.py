"""Code that options refer to by name: "module:name" or "path/to/file.py:name"."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from seeupo.envs.declare import Role, declares, requirement
from seeupo.envs.tracebacks import explain_exception, is_installed
from seeupo.errors import EnvError

ARGUMENTS = "(...)"
LOCAL = "<locals>."
SIMPLE = (str, int, float, tuple, type(None))


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
        with _project_last(locate(reference)):
            loaded = load_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
    except EnvError:
        raise
    except Exception as error:  # a module may raise anything while it is loaded
        raise _not_loaded(reference, error) from None
    try:
        code = reduce(getattr, name.split("."), loaded)
    except AttributeError:
        raise EnvError(f"{reference!r}: {why_not_importable(reference) or f'{module} has no {name}'}") from None
    if not declares(code, role):
        raise EnvError(f"{reference!r} is not usable as {role}: expected {requirement(role)}")
    return code


def resolve_option(option: str, value: Any, role: Role) -> Any:
    """Return the code that an option names; in Python the option may also be the code itself."""
    code = resolve(value, role) if isinstance(value, str) else value
    if not callable(code):
        raise EnvError(f"{option}={value!r}: expected {requirement(role)}")
    return code


def split(reference: str) -> tuple[str, str]:
    """Return module or file, and name."""
    module, _, name = reference.rpartition(":")
    if not module or not name:
        raise EnvError(f"{reference!r}: expected 'module:name' or 'path/to/file.py:name'")
    return module, name


def reference_to(factory: object) -> str:
    """Return the name with which a run records a factory object: "module:Class", or "script.py:Class".

    "(...)" follows if its class takes arguments that may differ from their defaults.
    """
    return class_reference(type(factory)) + ("" if _has_default_arguments(factory) else ARGUMENTS)


def class_reference(cls: type) -> str:
    """Return the name of a class: "module:Class", or "script.py:Class" for one of the main program."""
    module = _main_module() if cls.__module__ == "__main__" else cls.__module__
    return f"{module}:{cls.__qualname__}"


def same_code(one: str, other: str) -> bool:
    """Return whether two names may mean the same class, because it can be named by its module or its file, or moved."""
    classes = [name.rpartition(":")[2].rpartition(LOCAL)[2].removesuffix(ARGUMENTS) for name in (one, other)]
    return one == other or (":" in one and ":" in other and classes[0] == classes[1])


def why_not_importable(reference: str) -> str | None:
    """Return why a recorded reference does not suffice to create the same environment again; None if it does."""
    module, _, name = reference.rpartition(":")
    if module == "__main__" or LOCAL in name:
        return f"{name} was defined in a script or a function and cannot be imported. Move it to a module and name it"
    if name.endswith(ARGUMENTS):
        return f"{name.removesuffix(ARGUMENTS)} takes arguments that were not recorded. Name it again with its options"
    return None


def canonical(reference: str) -> str:
    """Return the reference with an absolute path if it names a file, so that equal references compare equal."""
    module, _, name = reference.rpartition(":")
    return f"{Path(module).expanduser().absolute()}:{name}" if module.endswith(".py") else reference


def locate(reference: str) -> Source | None:
    """Return where the code of a reference is, without running it; None if it is not found or is built in.

    Modules are searched where Python searches them, then in the current directory.
    """
    module, _ = split(canonical(reference))
    path = Path(module) if module.endswith(".py") else _path_of(module.partition(".")[0])
    if path is None or not path.exists():
        return None
    return Source(path, None if is_installed(path) else path.parent)


def hidden_module(name: object) -> str:
    """Explain why a sandboxed worker of this interpreter does not find a module that this process finds, if it does."""
    module = name.partition(".")[0] if isinstance(name, str) else ""
    path = _path_of(module) if module.isidentifier() else None
    if path is None or is_installed(path):
        return ""
    return (
        f". The sandbox hides {path}: install the package of {module} without -e, or move it into the directory of the "
        "environment, which must not contain your home"
    )


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module; in `sys.modules`, where dataclasses look for it, it has a name of its own."""
    spec = importlib.util.spec_from_file_location(f"{path.stem} of {path.parent.absolute()}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise EnvError(f"file {path} does not exist")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _project_last(source: Source | None) -> Iterator[None]:
    """Import from a project as well, but last, so that it cannot hide installed packages, and only while it loads."""
    folder = None if source is None or source.project is None else str(source.project)
    if folder is None or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the code has removed it
            sys.path.remove(folder)


def _not_loaded(reference: str, error: Exception) -> EnvError:
    """Return the error for a module that does not exist, or that raised an exception while it was loaded."""
    module, name = split(reference)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        return EnvError(
            f"{reference!r}: there is no module {missing!r}, neither where Python finds modules nor in the current "
            f"directory. Go to its directory, or name its file: path/to/{module.replace('.', '/')}.py:{name}"
        )
    return EnvError(*f"{reference!r}: {module} cannot be loaded: {explain_exception(error)}".split("\n"))


def _main_module() -> str:
    """Return the name with which the main program can be imported; "__main__" if there is none."""
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:  # python -m module
        return str(spec.name)
    file, here = Path(getattr(main, "__file__", None) or "").resolve(), Path.cwd().resolve()
    is_script = file.suffix == ".py" and file.is_file() and file.is_relative_to(here)
    return file.relative_to(here).as_posix() if is_script else "__main__"


def _has_default_arguments(factory: object) -> bool:
    """Return whether a factory object equals one without arguments, as far as its attributes show it."""
    missing = object()
    for name, parameter in inspect.signature(type(factory)).parameters.items():
        value = getattr(factory, name, getattr(factory, f"_{name}", missing))
        comparable = type(value) is type(parameter.default) and isinstance(value, SIMPLE)
        if value is not parameter.default and not (comparable and value == parameter.default):
            return False
    return True


def _path_of(module: str) -> Path | None:
    """Return the file or package of a top-level module. Finding a submodule would run its package."""
    try:
        spec = importlib.util.find_spec(module) or PathFinder.find_spec(module, [str(Path.cwd())])
    except ValueError:  # a module without a spec, such as __main__
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.has_location else None
