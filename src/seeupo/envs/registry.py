"""Environments by name: the ones that come with this package, and those of installed packages.

A package adds an environment by an entry point in the group "seeupo.environments", which names an `EnvSpec` or a
factory class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from seeupo.envs.failures import EnvError, nearest
from seeupo.envs.sandbox import Limits

GROUP = "seeupo.environments"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What has to be known of an environment before any of its code is loaded.

    Attributes:
        summary: one line, for the list of environments.
        licence: of the benchmark's code and data.
        tasks: how many there are, in words.
        factory: "module:Class"; the class fulfils `EnvFactory`, and its keyword arguments are the options.
        in_process: trusted code that never runs what a model wrote, and hangs on nothing: no worker is needed.
        requirements: "name==version" strings, installed without dependencies into an interpreter of its own. Without
            any, the trainer's interpreter serves.
        prepare: "module:function", called once with the environment's folder in its interpreter, after the packages
            were installed.
        mounts: "module:function" of the trainer's side, which says what workers may read besides their interpreter:
            `mounts(options, role="run" or "judge")` maps places inside the sandbox to places outside.
        runs_model_code: the model's text is executed, so that there must be a sandbox.
        judged_apart: scores, tasks and experts come from a worker of the role "judge", which no action ever reaches.
            The `Env` then has `save() -> JSON` instead of a score, and the factory `judge(task, saved) -> float`.
        episodes_per_worker: how many episodes one worker holds at a time; None for any number.
        ceilings: options under which not even the expert solves everything; a check says what it reaches.
    """

    name: str
    factory: str
    summary: str = ""
    licence: str = ""
    tasks: str = ""
    in_process: bool = False
    requirements: tuple[str, ...] = ()
    prepare: str | None = None
    mounts: str | None = None
    runs_model_code: bool = False
    judged_apart: bool = False
    episodes_per_worker: int | None = None
    ceilings: tuple[Mapping[str, Any], ...] = ()
    limits: Limits = field(default_factory=Limits)


SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        name="pocket",
        summary="a few small apps, a dozen tools, tasks of two to six dependent calls; no dependencies",
        licence="Apache-2.0",
        tasks="any number",
        factory="seeupo.envs.pocket:PocketFactory",
        in_process=True,
    ),
    EnvSpec(
        name="bfcl",
        summary="BFCL v4 multi-turn: function calling over several user turns, with the official checker",
        licence="Apache-2.0",
        tasks="4 x 200",
        factory="seeupo.envs.bfcl.world:BfclFactory",
        requirements=("bfcl-eval==2026.3.23", "filelock==3.20.0", "mpmath==1.3.0"),
        ceilings=({"max_steps": 10, "expert_step": "turn"}, {"max_steps": 10, "expert_step": "call"}),
    ),
)
BUILT_IN: Mapping[str, EnvSpec] = MappingProxyType({spec.name: spec for spec in SPECS})


def names() -> list[str]:
    """All environments that there are."""
    return sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def lookup(name: str) -> EnvSpec:
    """The environment of that name. Built-in ones come first: no package replaces them unnoticed."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for entry in entry_points(group=GROUP, name=name):
        return from_entry_point(entry)
    raise EnvError(f"there is no environment {name!r}; {nearest(name, names())}")


def from_entry_point(entry: EntryPoint) -> EnvSpec:
    """What a package offers: a spec as it is, or a factory class, which is run in workers."""
    try:
        offered: Any = entry.load()
    except Exception as error:
        raise EnvError(f"environment {entry.name!r}: {entry.value} cannot be loaded: {error}") from error
    if isinstance(offered, EnvSpec):
        return offered
    if isinstance(offered, type):
        summary = (offered.__doc__ or "").strip().partition("\n")[0]
        return EnvSpec(name=entry.name, summary=summary, factory=f"{offered.__module__}:{offered.__qualname__}")
    raise EnvError(f"environment {entry.name!r}: {entry.value} should be an EnvSpec or a class and is {offered!r}")
