"""The trained policy as a Hugging Face folder, with a card that says where it comes from."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from seeupo.models.loading import LoadedPolicy
from seeupo.models.saving import save_model
from seeupo.training.evaluation import shown

ADAPTED = ".base_layer."
"""Where peft puts the weights of a layer that it adds an adapter to."""


def export_policy(policy: LoadedPolicy, path: Path, card: str) -> None:
    """Write model, tokenizer and card, whole or not at all; adapters are merged into the weights."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        save_model(without_adapters(policy.model), policy.tokenizer, partial)
        (partial / "README.md").write_text(card, encoding="utf-8")
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def without_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, or one in which low-rank adapters have become part of the weights they adapt."""
    layers = {name: layer for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}
    if not layers:
        return model
    weights: dict[str, Tensor] = {
        name.replace(ADAPTED, "."): weight.detach()
        for name, weight in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, layer in layers.items():
        (adapter,) = layer.active_adapters
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight(adapter).detach()
    with torch.random.fork_rng(devices=[]):  # its first weights are drawn, and thrown away
        merged = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype)
    merged.load_state_dict(weights)
    merged.tie_weights()
    if model.generation_config is not None:
        merged.generation_config = model.generation_config
    plain: PreTrainedModel = merged
    return plain


CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags: [seeupo, reinforcement-learning, agent]
---

# An agent for {environment}, trained with {algorithm}

`{model}` was trained on tasks of `{environment}` by reinforcement learning: {iterations} iterations,
{optimizer_steps} optimizer steps, with seeupo {version}.

On {tasks} held-out tasks (panel {panel}), each attempted {samples} times, with 95% intervals over tasks:

| | avg@{k} | pass@{k} |
|---|---|---|
| before | {before} |
| after | {after} |

It was made for this environment; how it behaves elsewhere is not known. The recipe that repeats the run:

```toml
{recipe}
```
"""


def model_card(summary: Mapping[str, Any], recipe_toml: str) -> str:
    """What somebody who finds the folder should know."""
    k = summary["k"]
    scores = {
        when: " | ".join(shown(summary[when][f"{name}@{k}"]) for name in ("avg", "pass"))
        for when in ("before", "after")
    }
    version = summary["versions"]["seeupo"]
    return CARD.format(**{**summary, **scores}, version=version, recipe=recipe_toml.rstrip())
