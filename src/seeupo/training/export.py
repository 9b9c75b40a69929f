"""The trained policy as a Hugging Face folder, with a card that says where it comes from."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seeupo.models.adapters import without_adapters
from seeupo.models.loading import LoadedPolicy
from seeupo.models.saving import save_model
from seeupo.training.evaluation import shown


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
