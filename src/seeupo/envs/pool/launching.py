"""Decide how the workers of an environment are launched on this machine."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seeupo.envs.install import interpreter
from seeupo.envs.pool.sandbox import Bubblewrap, Limits, find_bubblewrap, warn_unsandboxed
from seeupo.envs.pool.serve import load_factory
from seeupo.envs.pool.worker import Launch
from seeupo.envs.references import canonical, locate, reference_to
from seeupo.envs.registry import EnvSpec, lookup
from seeupo.errors import EnvError, EnvUnavailable
from seeupo.protocols import EnvFactory


def spec_and_factory(
    environment: str | EnvSpec | EnvFactory, options: Mapping[str, Any]
) -> tuple[EnvSpec, EnvFactory | None]:
    """Return the spec of an environment, and its factory if it runs in this process."""
    spec = lookup(environment) if isinstance(environment, str) else environment
    if isinstance(spec, EnvSpec):
        return spec, load_factory(spec.factory, options) if spec.in_process else None
    if options:
        raise EnvError(f"options={dict(options)!r}: a factory object takes none; pass them to its constructor")
    reference = reference_to(spec)
    return EnvSpec(name=reference, factory=reference, in_process=True), spec


def launch_settings(
    spec: EnvSpec, options: Mapping[str, Any], limits: Limits, *, role: str, unsandboxed: bool
) -> Launch:
    """Return how workers of an environment are launched.

    Args:
        spec: The environment.
        options: Keyword arguments of its factory.
        limits: Resource limits of the worker.
        role: "run" for workers that run episodes, "judge" for a separate worker for tasks, experts and scores.
        unsandboxed: Run workers without a sandbox.
    """
    python = interpreter(spec)
    code = [reference for reference in (spec.factory, *spec.code_in(options)) if not reference.startswith("seeupo.")]
    sources = [source for reference in code if (source := locate(reference)) is not None]
    projects = [(source.project, source.path) for source in sources if source.project is not None]
    options = absolute_paths(spec, options)
    files = [Path(value) for name in spec.file_options if isinstance(value := options.get(name), str)]
    readable = [path for path in files if path.is_file()]
    readable += [path if is_private(project) else project for project, path in projects]
    mounts = {path: path.resolve() for path in readable}
    if spec.mounts is not None:
        module, _, name = spec.mounts.partition(":")
        mounts |= getattr(importlib.import_module(module), name)(options, role=role)
    return Launch(
        python=python,
        factory=canonical(spec.factory),
        options=options,
        packages=tuple(source.path for source in sources if source.project is None),
        projects=tuple(project for project, _ in projects),
        limits=limits,
        mounts=mounts,
        sandbox=None if unsandboxed else sandbox_for(spec),
    )


def sandbox_for(spec: EnvSpec) -> Bubblewrap | None:
    """Return this machine's sandbox. Without one, refuse environments that execute model code."""
    sandbox = find_bubblewrap()
    if isinstance(sandbox, Bubblewrap):
        return sandbox
    if spec.runs_model_code:
        raise EnvUnavailable(
            f"{spec.name} executes what the model writes and needs a sandbox: {sandbox}. "
            "To run it unprotected anyway, add --unsandboxed (in Python: unsandboxed=True)."
        )
    warn_unsandboxed(sandbox)
    return None


def absolute_paths(spec: EnvSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with absolute paths, because workers have another working directory."""
    absolute = dict(options)
    for name, value in options.items():
        if isinstance(value, str) and name in spec.code_options:
            absolute[name] = canonical(value)
        elif isinstance(value, str) and name in spec.file_options:
            absolute[name] = str(Path(value).expanduser().absolute())
    return absolute


def is_private(folder: Path) -> bool:
    """Return whether workers must not see a whole directory, or cannot.

    It may contain the user's home or temporary files. Workers of root run as another user, who may have no access.
    """
    for private in (Path.home(), Path(tempfile.gettempdir())):
        if private.resolve().is_relative_to(folder.resolve()):
            return True
    return os.getuid() == 0 and folder.stat().st_mode & 0o005 != 0o005
