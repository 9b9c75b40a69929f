"""Read the configuration of a model, and check that it asks for no more than its files contain.

A few bytes of a stranger's config.json can ask for millions of layers or terabytes of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from seeupo.errors import ModelError, first_line

MAX_COUNTS = {"layer": 1000, "expert": 1000, "label": 10_000}
"""Highest number by a part of its key: each layer, expert and label is an object of its own."""
MAX_LAYER_EXPERTS = 100_000
"""Highest number of experts in all layers."""
SPARE_ELEMENTS = 10**8
"""Elements that a model may need besides twice those of its files: buffers, and a tied output head."""


def read_config(path: str, *, local: bool = False) -> PretrainedConfig:
    """Return the configuration of a model in a folder or on the model hub.

    Args:
        local: Use files on this machine only.
    """
    try:
        table, _ = PretrainedConfig.get_config_dict(path, local_files_only=local)
        _check_counts(table, path)
        config: PretrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=local)
    except ModelError:
        raise
    except Exception as error:  # damaged files raise many types
        raise ModelError(f"{path} could not be loaded: {first_line(error)}") from None
    return config


def check_size(config: PretrainedConfig, folder: Path) -> None:
    """Raise if a configuration describes a model of another size than the weights in a folder.

    No memory is allocated for weights: transformers would allocate those that the files do not have.
    """
    try:
        stored = sum(_elements(file) for file in folder.glob("*.safetensors"))
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    except Exception as error:  # libraries raise many types for sizes that make no sense
        raise ModelError(
            f"{folder} could not be loaded: {first_line(error)}. Expected config.json and safetensors of the same "
            "model; download or copy it again"
        ) from None
    if needed > 2 * stored + SPARE_ELEMENTS:
        raise ModelError(
            f"{folder}: config.json describes a model of {needed:.3g} weights, and the safetensors files have "
            f"{stored:.3g}. They belong to different models; download or copy the model again"
        )


def _check_counts(table: Mapping[str, Any], path: str) -> None:
    numbers = list(_integers(table))
    most = {"layer": 1, "expert": 1}
    for key, number in numbers:
        for part, limit in MAX_COUNTS.items():
            if part in key.lower():
                most[part] = max(most.get(part, 0), number)
                if number > limit:
                    raise ModelError(
                        f"{path}: config.json has {key} = {number}; expected at most {limit}. It is damaged or "
                        "hostile; download or copy the model again"
                    )
    if most["layer"] * most["expert"] > MAX_LAYER_EXPERTS:
        raise ModelError(
            f"{path}: config.json asks for {most['expert']} experts in each of {most['layer']} layers; expected at "
            f"most {MAX_LAYER_EXPERTS} in all. It is damaged or hostile; download or copy the model again"
        )


def _integers(table: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the integers of nested tables with their keys."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _integers(value)
        elif isinstance(value, int):
            yield str(key), value


def _elements(file: Path) -> int:
    """Return the number of elements of the tensors in a safetensors file, by its header."""
    with safe_open(file, framework="pt") as tensors:
        return sum(torch.Size(tensors.get_slice(name).get_shape()).numel() for name in tensors.keys())  # noqa: SIM118
