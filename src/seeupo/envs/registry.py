"""Find environments by name: built-in ones and those of installed packages.

A package adds an environment with an entry point in the group "seeupo.environments" that names an `EnvSpec` or a
factory class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from seeupo.envs.pool.sandbox import Limits
from seeupo.envs.references import why_not_importable
from seeupo.errors import EnvError, suggest

GROUP = "seeupo.environments"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """Description of an environment that can be read without loading its code.

    Attributes:
        factory: "module:Class" of an `EnvFactory`; its keyword arguments are the environment's options.
        summary: One line for the list of environments.
        license: License of the benchmark's code and data.
        tasks: Number of tasks, as text.
        in_process: Whether episodes run in the trainer's process. Only for trusted code that cannot hang and never
            executes what a model wrote.
        requirements: "name==version" strings, installed without dependencies into a separate interpreter. Without any,
            the trainer's interpreter is used.
        prepare: "module:function", called once with the environment's folder in its interpreter after the packages
            were installed.
        mounts: "module:function" in the trainer's process that returns what workers may read besides their
            interpreter: `mounts(options, role="run" or "judge")` maps paths in the sandbox to paths outside.
        runs_model_code: Whether the model's text is executed, so that a sandbox is required.
        separate_judge: Whether scores, tasks and experts come from a separate worker (role "judge") that no action
            reaches. The `Env` then has `save() -> JSON` instead of `score`, and the factory `judge(task, saved)`.
        episodes_per_worker: Number of concurrent episodes per worker; None for no limit.
        code_options: Options that name code, which runs only if the user trusts it.
        file_options: Options that name files, which workers may read.
        limits: Resource limits of each worker.
    """

    name: str
    factory: str
    summary: str = ""
    license: str = ""
    tasks: str = ""
    in_process: bool = False
    requirements: tuple[str, ...] = ()
    prepare: str | None = None
    mounts: str | None = None
    runs_model_code: bool = False
    separate_judge: bool = False
    episodes_per_worker: int | None = None
    code_options: tuple[str, ...] = ()
    file_options: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def code_in(self, options: Mapping[str, Any]) -> list[str]:
        """Return the references to code that options name."""
        return [value for name in self.code_options if isinstance(value := options.get(name), str)]


def requirements_of(folder: str) -> tuple[str, ...]:
    """Return the pinned packages in a built-in environment's `requirements.txt`."""
    lines = (Path(__file__).parent / folder / "requirements.txt").read_text().splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        name="pocket",
        summary="a few small apps, a dozen tools, tasks of two to six dependent calls; no dependencies",
        license="Apache-2.0",
        tasks="any number",
        factory="seeupo.envs.pocket:PocketFactory",
        in_process=True,
    ),
    EnvSpec(
        name="bfcl",
        summary="BFCL v4 multi-turn: function calling over several user turns, with the official checker",
        license="Apache-2.0",
        tasks="4 x 200",
        factory="seeupo.envs.bfcl.bfcl_env:BfclFactory",
        requirements=("bfcl-eval==2026.3.23", "filelock==3.20.0", "mpmath==1.3.0"),
    ),
    EnvSpec(
        name="appworld",
        summary="everyday tasks in nine simulated apps, solved by writing Python code",
        license="Apache-2.0; its apps and data must not be published",
        tasks="90 train, 57 dev, 168 + 417 test",
        factory="seeupo.envs.appworld.factory:AppWorldFactory",
        requirements=requirements_of("appworld"),
        prepare="seeupo.envs.appworld.prepare_appworld:prepare",
        mounts="seeupo.envs.appworld.task_data:mounts",
        runs_model_code=True,
        separate_judge=True,
        episodes_per_worker=1,
        file_options=("data",),
        limits=Limits(call_seconds=300, memory_mb=3072, open_files=512, processes=128),
    ),
    EnvSpec(
        name="textworld",
        summary="text adventures generated from a seed, one reward for winning",
        license="MIT; parts of it GPL-2.0",
        tasks="any number",
        factory="seeupo.envs.textworld.textworld_env:TextworldFactory",
        requirements=requirements_of("textworld"),
        prepare="seeupo.envs.textworld.prepare_textworld:prepare",
        mounts="seeupo.envs.textworld.games:mounts",
    ),
    EnvSpec(
        name="gem",
        summary="games of gem-llm, such as guessing a number, through the gymnasium adapter",
        license="Apache-2.0",
        tasks="any number",
        factory="seeupo.envs.gymnasium_text.gem:GemFactory",
        requirements=requirements_of("gymnasium_text"),
    ),
    EnvSpec(
        name="gymnasium",
        summary="environments of Gymnasium by id, and text environments with its reset and step",
        license="yours",
        tasks="any number",
        factory="seeupo.envs.gymnasium_text.gymnasium_env:GymnasiumTextFactory",
        code_options=("make", "expert"),
    ),
    EnvSpec(
        name="dataset",
        summary="prompts from a JSONL file, one reply each, scored by your Python function",
        license="yours",
        tasks="yours",
        factory="seeupo.envs.dataset.dataset_env:DatasetFactory",
        code_options=("reward",),
        file_options=("train", "test"),
        limits=Limits(memory_mb=8192, total_mb=10240, message_mb=256),
    ),
    EnvSpec(
        name="tasks",
        summary="tasks of an agent program, from a JSONL file",
        license="yours",
        tasks="yours",
        factory="seeupo.envs.task_file.task_file:TaskFileFactory",
        file_options=("path",),
        limits=Limits(memory_mb=8192, total_mb=10240, message_mb=256),
    ),
)
BUILT_IN: Mapping[str, EnvSpec] = MappingProxyType({spec.name: spec for spec in SPECS})


def names() -> list[str]:
    """Return the names of all environments."""
    return sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def is_reference(name: str) -> bool:
    """Return whether an environment is named by its factory, "module:Factory" or "path/to/file.py:Factory"."""
    return ":" in name


def lookup(name: str) -> EnvSpec:
    """Return the environment of that name. A package cannot replace a built-in environment."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if is_reference(name):
        if (reason := why_not_importable(name)) is not None:
            raise EnvError(f"the environment {reason}, or pass its factory again from Python (environment=...)")
        return EnvSpec(name=name, factory=name)
    for entry in entry_points(group=GROUP, name=name):
        return from_entry_point(entry)
    raise EnvError(
        f"there is no environment {name!r}; {suggest(name, names())}. Name your own by its factory: module:Factory"
    )


def from_entry_point(entry: EntryPoint) -> EnvSpec:
    """Return the spec that an entry point names; a factory class gets a spec that runs it in workers."""
    try:
        offered: Any = entry.load()
    except Exception as error:
        raise EnvError(f"environment {entry.name!r}: {entry.value} cannot be loaded: {error}") from error
    if isinstance(offered, EnvSpec):
        return offered
    if isinstance(offered, type):
        summary = (offered.__doc__ or "").strip().partition("\n")[0]
        return EnvSpec(name=entry.name, summary=summary, factory=f"{offered.__module__}:{offered.__qualname__}")
    raise EnvError(f"environment {entry.name!r}: {entry.value} is {offered!r}; expected an EnvSpec or a factory class")
