"""Start the sampler processes of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from seeupo.config.model_settings import LoraSettings
from seeupo.config.schema import Recipe
from seeupo.distributed.direct_transfer import direct_transfer
from seeupo.distributed.placement import Bundles
from seeupo.distributed.remote_samplers import RemoteSamplers
from seeupo.distributed.vllm_sampler import VllmOptions, VllmSampler
from seeupo.inference import make_sampler
from seeupo.inference.sampling import StopCriteria
from seeupo.models.loading import LoadedPolicy
from seeupo.models.lora.adapters import add_adapters
from seeupo.models.precision import resolve_device
from seeupo.models.saving import save_model
from seeupo.protocols import Sampler

Load = Callable[[], LoadedPolicy]


def start_samplers(
    recipe: Recipe, policy: LoadedPolicy, load: Load, stack: ExitStack, shared: Bundles | None
) -> Sampler:
    """Return the samplers of a recipe in Ray actors, which are stopped with the stack.

    Args:
        policy: The policy as it was loaded in this process.
        load: Loads it in another process.
        shared: Resources that the trainers use as well.
    """
    settings, device = recipe.sampler, resolve_device(recipe.model.device).type
    rows = -(-recipe.agent.concurrency // settings.count)
    lora = lora_settings(recipe)
    several = lora is not None and lora.adapters is not None
    direct = direct_transfer(
        settings,
        cluster=recipe.engine.kind == "cluster",
        device=device,
        dtype=recipe.model.dtype,
        adapters=several,
    )
    make: Callable[[], Sampler] = partial(_local, load, lora, rows, settings.speculation)
    if settings.kind == "vllm":
        make = partial(
            VllmSampler,
            VllmOptions(
                model=_model_folder(recipe, policy, stack),
                context_length=policy.context_length,
                end_tokens=tuple(sorted(StopCriteria(policy).end_tokens)),
                dtype=recipe.model.dtype,
                max_rows=rows,
                tensor_parallel=settings.tensor_parallel,
                gpu_memory=settings.gpu_memory,
                transfer="files" if direct is None else direct.backend,
                shared=shared is not None,
                lora=lora if several else None,
            ),
        )
    samplers = RemoteSamplers(
        make,
        settings.count,
        gpus=settings.tensor_parallel if device == "cuda" and shared is None else 0,
        shared=shared,
        lockstep=recipe.run.deterministic,
        direct=direct,
        call_seconds=recipe.engine.call_seconds,
    )
    return stack.enter_context(closing(samplers))


def lora_settings(recipe: Recipe) -> LoraSettings | None:
    """Return the settings of the adapters with the turns that share one."""
    lora = recipe.model.lora
    return None if lora is None else replace(lora, turns_per_agent=recipe.algorithm.options.get("turns_per_agent", 1))


def sampled_copy(policy: LoadedPolicy, lora: LoraSettings | None) -> LoadedPolicy:
    """Return a policy that gets its weights from an engine: with adapters per turn or role, it needs all of them."""
    if lora is not None and lora.adapters is not None:
        add_adapters(policy.model, lora)
    return policy


def _local(load: Load, lora: LoraSettings | None, rows: int, speculation: bool) -> Sampler:
    return make_sampler(sampled_copy(load(), lora), training=True, max_rows=rows, speculation=speculation)


def _model_folder(recipe: Recipe, policy: LoadedPolicy, stack: ExitStack) -> str:
    """Return a folder or hub id for vLLM; a model that exists in memory only is written to a temporary folder."""
    name = recipe.model.name
    if policy.adapter is None and (Path(name).is_dir() or name.count("/") == 1):
        return name
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="seeupo-model-"))
    save_model(policy.model, policy.tokenizer, Path(folder))
    return folder
