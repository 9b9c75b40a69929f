"""`make_plan`: whether a recipe fits on given GPUs, how long an iteration takes, and what to change if it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from seeupo.config.model_settings import LoraSettings
from seeupo.config.process_settings import Placement
from seeupo.config.schema import Recipe
from seeupo.planning.memory import (
    GIB,
    RESERVE,
    TrainingMemory,
    cache_bytes_per_token,
    longest_turn,
    sampler_weights,
    snapshot_bytes,
    training_memory,
)
from seeupo.planning.shapes import ModelShape
from seeupo.planning.timing import CPU, GPU, IterationTime, iteration_time

VLLM_OVERHEAD = 2 * GIB
"""Memory of a vLLM sampler besides weights and cache."""
MOST_TRAINERS = 64
"""Largest number of trainers that is suggested."""


@dataclass(frozen=True)
class Limits:
    """The devices of a plan.

    Attributes:
        gpus: Number of GPUs; None for as many as the recipe asks for, 0 for CPUs.
        memory: Bytes of each GPU, or of the CPU's memory.
    """

    gpus: int | None
    memory: float


@dataclass(frozen=True)
class SamplerMemory:
    """Memory of the sampler on each of its GPUs.

    Attributes:
        weights: Bytes of the sampler's own weights and of their snapshot for decoding; 0 if it uses the trainer's only.
        cache: Bytes of keys and values.
        rows: Number of sequences of full length that the cache holds at a time, at most agent.concurrency.
    """

    weights: float
    cache: float
    rows: float


@dataclass(frozen=True)
class Plan:
    """Memory and time of a recipe.

    Attributes:
        gpus: Number of GPUs that the recipe asks for.
        problems: Reasons that it does not fit; empty if it fits.
        changes: Overrides that would help, each with its result, in the order in which to try them.
        spread: Overrides with which the recipe uses more of the GPUs that it leaves unused, and its plan with them.
    """

    training: TrainingMemory
    sampler: SamplerMemory
    time: IterationTime
    gpus: int
    problems: tuple[str, ...]
    changes: tuple[str, ...]
    spread: tuple[str, Plan] | None = None


def make_plan(shape: ModelShape, recipe: Recipe, limits: Limits) -> Plan:
    """Return the plan of a recipe on these devices."""
    training, sampler = training_memory(shape, recipe), _sampler_memory(shape, recipe, limits)
    problems = tuple(_problems(shape, recipe, limits))
    return Plan(
        training=training,
        sampler=sampler,
        time=iteration_time(shape, recipe, CPU if limits.gpus == 0 else GPU, rows=max(1.0, sampler.rows)),
        gpus=gpus_of(recipe),
        problems=problems,
        changes=tuple(_changes(shape, recipe, limits)) if problems else (),
        spread=None if problems else _spread(shape, recipe, limits),
    )


def _spread(shape: ModelShape, recipe: Recipe, limits: Limits) -> tuple[str, Plan] | None:
    """Return overrides that put a rank on every GPU and samplers beside them, and the plan; None if no more are used.

    With `collect.lag`, samplers work during updates, so each half of the GPUs does one of the two.
    """
    gpus, width, lag = limits.gpus or 0, recipe.sampler.tensor_parallel, recipe.collect.lag
    count = gpus // (2 * width if lag else width)
    trainers = gpus - count * width if lag else count * width
    if count == 0 or trainers % recipe.engine.replicas or gpus_of(recipe) >= gpus:
        return None
    placement: Placement = "apart" if lag else "shared"
    engine = replace(recipe.engine, kind="cluster", trainers=trainers)
    wider = replace(recipe, engine=engine, sampler=replace(recipe.sampler, count=count, placement=placement))
    options = [
        f"--{section}.{key} {value}"
        for section, key in (("engine", "kind"), ("engine", "trainers"), ("sampler", "count"), ("sampler", "placement"))
        if (value := getattr(getattr(wider, section), key)) != getattr(getattr(recipe, section), key)
    ]
    return " ".join(options), make_plan(shape, wider, limits)


def gpus_of(recipe: Recipe) -> int:
    """Return the number of GPUs that a recipe asks for."""
    samplers = recipe.sampler.count * recipe.sampler.tensor_parallel
    if recipe.sampler.placement == "shared":
        return recipe.engine.trainers
    return recipe.engine.trainers + samplers


def _sampler_memory(shape: ModelShape, recipe: Recipe, limits: Limits) -> SamplerMemory:
    per_row = cache_bytes_per_token(shape, recipe) * _row_tokens(shape, recipe) / recipe.sampler.tensor_parallel
    concurrency = recipe.agent.concurrency / max(1, recipe.sampler.count)
    if recipe.sampler.kind == "local":
        weights = 0.0 if recipe.sampler.count == 0 else sampler_weights(shape, recipe)
        return SamplerMemory(weights + snapshot_bytes(shape, recipe), per_row * concurrency, concurrency)
    weights = sampler_weights(shape, recipe)
    cache = max(0.0, recipe.sampler.gpu_memory * limits.memory - weights - VLLM_OVERHEAD)
    return SamplerMemory(weights, cache, min(concurrency, cache / per_row))


def _row_tokens(shape: ModelShape, recipe: Recipe) -> int:
    if recipe.agent.max_prompt_tokens is None:
        return shape.context
    return min(shape.context, longest_turn(recipe))


def _problems(shape: ModelShape, recipe: Recipe, limits: Limits) -> Iterator[str]:
    training, sampler = training_memory(shape, recipe), _sampler_memory(shape, recipe, limits)
    # Ranks on CPUs share one memory.
    usable = limits.memory / recipe.engine.trainers if limits.gpus == 0 else limits.memory * (1 - RESERVE)
    if limits.gpus and gpus_of(recipe) > limits.gpus:
        yield f"it asks for {gpus_of(recipe)} GPUs; there are {limits.gpus}"
    if training.peak > usable:
        yield f"an update needs {gib(training.peak)} per device; {gib(usable)} can be used"
    if recipe.sampler.kind == "vllm":
        if sampler.rows < 1:
            yield (
                f"vLLM has {gib(recipe.sampler.gpu_memory * limits.memory)} per GPU for {gib(sampler.weights)} of "
                "weights and the cache of one sequence; raise sampler.gpu_memory or sampler.tensor_parallel"
            )
        together = training.resident + recipe.sampler.gpu_memory * limits.memory
        if recipe.sampler.placement == "shared" and together > limits.memory:
            yield (
                f"a sampler with sampler.gpu_memory = {recipe.sampler.gpu_memory:g} shares its GPU with "
                f"{gib(training.resident)} of the trainer; lower it to {_share_left(training, limits):.2f}"
            )
    else:
        held = sampler.weights + (training.resident if recipe.sampler.count == 0 else 0.0)
        if held + sampler.cache > usable:
            yield (
                f"{recipe.agent.concurrency} episodes of full length need {gib(sampler.cache)} of keys and values "
                f"beside {gib(held)} of the policy; lower agent.concurrency or agent.max_prompt_tokens"
            )


def _share_left(training: TrainingMemory, limits: Limits) -> float:
    return max(0.0, 1 - training.resident / limits.memory - RESERVE)


def _changes(shape: ModelShape, recipe: Recipe, limits: Limits) -> Iterator[str]:
    """Yield the overrides that reduce an update's memory, each alone, and all of them if none is enough."""
    everything, options, enough = recipe, list[str](), False
    for option, change in _candidates(shape, recipe, limits):
        changed = change(recipe)
        peak, fits = training_memory(shape, changed).peak, not list(_problems(shape, changed, limits))
        enough |= fits
        yield f"{option}: {gib(peak)} per device{', fits' if fits else ''}"
        everything, options = change(everything), [*options, option]
    if len(options) > 1 and not enough:
        fits = not list(_problems(shape, everything, limits))
        peak = training_memory(shape, everything).peak
        yield f"all of them together: {gib(peak)} per device{', fits' if fits else ''}"


def _candidates(shape: ModelShape, recipe: Recipe, limits: Limits) -> Iterator[tuple[str, _Change]]:
    """Yield overrides and what they change, in the order in which to try them."""
    if recipe.model.lora is None and not recipe.optimizer.trainable:
        shared = "" if recipe.model.reference_dtype is None else " --model.reference_dtype none"
        yield f"--model.lora.rank 16{shared}", _Change("model", {"lora": LoraSettings(), "reference_dtype": None})
    if limits.gpus != 0:
        kind = "" if recipe.engine.kind == "cluster" else "--engine.kind cluster "
        if not recipe.engine.cpu_offload:
            yield f"{kind}--engine.cpu_offload true", _Change("engine", {"kind": "cluster", "cpu_offload": True})
    if not recipe.model.gradient_checkpointing:
        yield "--model.gradient_checkpointing true", _Change("model", {"gradient_checkpointing": True})
    if limits.gpus != 0 and (trainers := _enough_trainers(shape, recipe, limits)) is not None:
        change = _Change("engine", {"kind": "cluster", "trainers": trainers})
        yield f"{kind}--engine.trainers {trainers}", change
    if (shortest := longest_turn(recipe)) < recipe.model.batch_tokens:
        tokens = max(shortest, recipe.model.batch_tokens // 4)
        yield f"--model.batch_tokens {tokens}", _Change("model", {"batch_tokens": tokens})
    elif recipe.agent.max_prompt_tokens is not None:
        tokens = recipe.agent.max_prompt_tokens // 2
        yield f"--agent.max_prompt_tokens {tokens}", _Change("agent", {"max_prompt_tokens": tokens})


@dataclass(frozen=True)
class _Change:
    """New values of keys in one section of a recipe."""

    section: str
    values: dict[str, object]

    def __call__(self, recipe: Recipe) -> Recipe:
        section = replace(getattr(recipe, self.section), **self.values)
        return replace(recipe, **{self.section: section})


def _enough_trainers(shape: ModelShape, recipe: Recipe, limits: Limits) -> int | None:
    """Return the number of trainers with which a recipe fits, or the largest that is possible; None for no more."""
    trainers = recipe.engine.trainers
    while trainers < MOST_TRAINERS:
        changed = _Change("engine", {"kind": "cluster", "trainers": 2 * trainers})(recipe)
        if limits.gpus is not None and gpus_of(changed) > limits.gpus:
            break
        trainers *= 2
        if not list(_problems(shape, changed, limits)):
            break
    return None if trainers == recipe.engine.trainers else trainers


def gib(size: float) -> str:
    """Format a number of bytes."""
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.1f} MiB"
