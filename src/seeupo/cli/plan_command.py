"""The body of `seeupo plan` and of `seeupo train --dry-run`: what a run needs, without loading weights."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from seeupo.cli.recipe_arguments import RequestedRecipe
from seeupo.cli.terminal import echo, echo_text
from seeupo.config.loader import recipe_to_toml
from seeupo.config.schema import Recipe
from seeupo.envs.pool.pool import EnvPool
from seeupo.envs.trust import Permissions
from seeupo.errors import EnvUnavailable, ModelError
from seeupo.models.catalog import CATALOG, downloaded_folder
from seeupo.planning.memory import GIB, RESERVE, packed_tokens
from seeupo.planning.plan import Limits, Plan, gib, gpus_of, make_plan
from seeupo.planning.shapes import ModelShape, shape_of
from seeupo.planning.timing import GPU
from seeupo.utils.text import counted

ASSUMED_MEMORY = 80
"""Memory of a GPU in GiB if none is given and this machine has none."""
DAY = 24 * 3600
MOST_DAYS = 14
"""Longest run on CPUs that a machine is said to be able to do."""


def show_plan(
    request: RequestedRecipe, *, gpus: int | None = None, gpu_memory: float | None = None, dry_run: bool = False
) -> None:
    """Print what a recipe needs and whether it fits; with `dry_run`, after the resolved recipe."""
    permissions = request.permissions
    recipe = request.recipe.with_code(permissions.trust)
    if dry_run:
        echo_text(recipe_to_toml(recipe))
    missing: list[str] = []
    recipe, words, environment = _open_environment(recipe, permissions, missing)
    try:
        shape: ModelShape | None = shape_of(recipe.model, words)
    except ModelError as error:
        if not dry_run or "/" not in recipe.model.name:  # a name that cannot exist is a mistake
            raise
        shape = None
        missing.append(str(error))
    lines = [("environment", environment), *_training_lines(recipe)]
    if shape is not None:
        limits = _limits(recipe, gpus, gpu_memory)
        lines = [("model", _model_line(shape, recipe)), *lines, *_plan_lines(recipe, shape, limits)]
    missing += _missing_here(recipe, shape, gpus or 0)
    lines += [("this machine", f"cannot run it: {reason}") for reason in missing] or [("this machine", "can run it")]
    for name, text in lines:
        echo(f"{name:<13} {text}")
    if dry_run:
        echo("Nothing was trained.")


def _open_environment(
    recipe: Recipe, permissions: Permissions, missing: list[str]
) -> tuple[Recipe, tuple[str, ...], str]:
    """Return the recipe with its number of iterations, the vocabulary of the environment, and a description."""
    settings = recipe.environment
    try:
        with EnvPool(
            settings.name,
            options=settings.options,
            workers=1,
            trust=permissions.trust,
            unsandboxed=permissions.unsandboxed,
        ) as pool:
            train_tasks = pool.count_tasks(settings.train_split)
            test_tasks = min(pool.count_tasks(settings.test_split), recipe.evaluation.tasks or sys.maxsize)
            words = tuple(pool.vocabulary()) if recipe.model.name == "tiny" and recipe.model.tiny.words else ()
    except EnvUnavailable as error:
        missing.append(str(error))
        return recipe, (), f"{settings.name}: splits {settings.train_split} and {settings.test_split}"
    recipe = replace(recipe, run=recipe.run.resolved(train_tasks, recipe.collect.tasks))
    return recipe, words, f"{settings.name}: {train_tasks} training tasks, {test_tasks} held-out tasks"


def _training_lines(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if (warm := recipe.warm_start) is not None:
        yield "warm start", f"{warm.batches} batches of {warm.batch_episodes} demonstrations"
    run, collect = recipe.run, recipe.collect
    length = counted(run.total_iterations, "iteration") if run.epochs is None else counted(run.epochs, "epoch")
    yield "training", f"{length} of {counted(collect.tasks, 'task')} x {counted(collect.group_size, 'attempt')}"


def _model_line(shape: ModelShape, recipe: Recipe) -> str:
    try:
        trained = sum(shape.trained_sizes(recipe.model, recipe.optimizer))
    except ValueError as error:
        raise ModelError(f"{recipe.model.name}: {error}") from None
    if not trained:
        raise ModelError(
            f"model.lora.targets match no weight of {recipe.model.name}; names look like "
            f"{', '.join(list(shape.sizes)[:3])}"
        )
    return f"{recipe.model.name}: {shape.parameters:,} parameters, {trained:,} trained; shape from {shape.source}"


def _limits(recipe: Recipe, gpus: int | None, gpu_memory: float | None) -> Limits:
    if gpus is None and gpu_memory is None and not _for_gpus(recipe):
        gpus = 0
    if gpu_memory is None:
        if gpus == 0:
            return Limits(0, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
        if gpu_count():
            import torch

            return Limits(gpus, float(torch.cuda.get_device_properties(0).total_memory))
    return Limits(gpus, (gpu_memory or ASSUMED_MEMORY) * GIB)


def gpu_count() -> int:
    """Return the number of GPUs that PyTorch can use; without a driver, PyTorch is not loaded, which takes seconds."""
    drivers = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvhost-gpu")  # NVIDIA, AMD, WSL, Jetson
    if shutil.which("nvidia-smi") is None and not any(Path(driver).exists() for driver in drivers):
        return 0
    import torch

    return torch.cuda.device_count()


def _for_gpus(recipe: Recipe) -> bool:
    """Return whether a recipe is meant for GPUs; device "auto" uses one if there is one, and any machine otherwise."""
    if recipe.model.device == "auto":
        return gpu_count() > 0 or recipe.sampler.kind == "vllm" or gpus_of(recipe) > 1
    return recipe.model.device != "cpu"


def _plan_lines(recipe: Recipe, shape: ModelShape, limits: Limits) -> Iterator[tuple[str, str]]:
    plan = make_plan(shape, recipe, limits)
    devices = "CPU" if limits.gpus == 0 else counted(plan.gpus, "GPU")
    yield "devices", f"{devices} with {gib(limits.memory)}{'' if limits.gpus == 0 else f', {RESERVE:.0%} kept free'}"
    yield "memory", f"{gib(plan.training.peak)} per device in an update of {packed_tokens(recipe):,} packed tokens"
    for part in plan.training.parts:
        yield "", f"{gib(part.size):>10}  {part.name}{' (in the memory of the CPU)' if part.on_cpu else ''}"
    yield from _sampler_lines(recipe, plan)
    yield from _time_lines(recipe, plan)
    if limits.gpus is not None and 0 < plan.gpus < limits.gpus:
        yield from _unused_lines(plan, limits.gpus)
    if plan.problems:
        for problem in plan.problems:
            yield "does not fit", problem
        for change in plan.changes:
            yield "change", change
    else:
        yield "fits", "yes"


def _sampler_lines(recipe: Recipe, plan: Plan) -> Iterator[tuple[str, str]]:
    sampler, settings = plan.sampler, recipe.sampler
    where = {"apart": "on GPUs of its own", "shared": "on the trainers' GPUs"}[settings.placement]
    kind = f"{settings.count} x {settings.kind} {where}" if settings.count else "in the trainer's process"
    weights = f"{gib(sampler.weights)} of weights, " if sampler.weights else ""
    rows = f"{sampler.rows:.1f}" if sampler.rows < 10 else f"{sampler.rows:.0f}"
    yield "sampler", f"{kind}: {weights}{gib(sampler.cache)} of keys and values for {rows} episodes of full length"


def _time_lines(recipe: Recipe, plan: Plan) -> Iterator[tuple[str, str]]:
    time, tokens = plan.time, plan.time.tokens
    yield (
        "tokens",
        f"at most {_count(tokens.sampled)} sampled and {_count(tokens.once)} distinct per iteration "
        f"({_count(tokens.by_turn)} turn by turn), if all prompts and responses reach their limits",
    )
    yield (
        "time",
        f"at most {_duration(time.sample)} to sample and {_duration(time.update)} to update per iteration, without "
        f"environments and evaluations, on {time.hardware.name} at {time.hardware.utilization:.0%} utilization",
    )
    if (seconds := _seconds(recipe, plan)) is not None:
        gpu_hours = f", {plan.gpus * seconds / 3600:,.1f} GPU-hours" if time.hardware is GPU else ""
        length = counted(recipe.run.total_iterations, "iteration")
        yield "whole run", f"at most {_duration(seconds)}{gpu_hours} for {length}"


def _seconds(recipe: Recipe, plan: Plan) -> float | None:
    """Return the time of the whole run; None if it depends on the number of tasks, which is not known."""
    return None if recipe.run.epochs is not None else recipe.run.total_iterations * plan.time.total


def _unused_lines(plan: Plan, gpus: int) -> Iterator[tuple[str, str]]:
    yield "unused", f"{gpus - plan.gpus} of {gpus} GPUs: the recipe asks for {plan.gpus}"
    if plan.spread is not None:
        options, wider = plan.spread
        yield (
            "change",
            f"{options}: uses {wider.gpus}, at most {_duration(wider.time.sample)} to sample and "
            f"{_duration(wider.time.update)} to update, {gib(wider.training.peak)} per device"
            f"{'' if wider.problems else ', fits'}",
        )


def _missing_here(recipe: Recipe, shape: ModelShape | None, planned: int) -> Iterator[str]:
    """Yield what this machine lacks to run a recipe on its own, on the planned number of GPUs if there is one."""
    packages = {"ray": recipe.engine.kind == "cluster" or recipe.sampler.count > 0}
    packages |= {"vllm": recipe.sampler.kind == "vllm", "peft": recipe.model.lora is not None}
    extras = {"ray": "cluster", "vllm": "vllm", "peft": "lora"}
    for package, needed in packages.items():
        if needed and importlib.util.find_spec(package) is None:
            yield f"{package} is not installed: pip install 'seeupo[{extras[package]}]'"
    name = recipe.model.name
    if name in CATALOG and downloaded_folder(name) is None:
        yield f"{name} is not downloaded yet; run: seeupo models fetch {name}"
    if recipe.engine.address is not None or shape is None:
        return  # a cluster of other machines
    gpus = gpu_count()
    if gpus == 0 and _for_gpus(recipe):
        yield f"it has no GPU; the recipe asks for {gpus_of(recipe)}"
    elif gpus < planned:
        yield f"it has {counted(gpus, 'GPU') if gpus else 'no GPU'}; the plan is for {planned}"
    else:
        plan = make_plan(shape, recipe, _limits(recipe, gpus, None))
        yield from plan.problems
        if not gpus and (seconds := _seconds(recipe, plan)) is not None and seconds > MOST_DAYS * DAY:
            yield f"without a GPU it takes up to {_duration(seconds)}; `seeupo plan` with --gpus 1 plans for one"


def _count(number: float) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return f"{number:.0f}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 2 * DAY:
        return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
    return f"{seconds / DAY:.0f} days"
