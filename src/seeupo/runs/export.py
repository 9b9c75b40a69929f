"""Export the trained policy as a Hugging Face folder with a model card."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seeupo.config.changes import changes_text
from seeupo.core.statistics import format_estimate


def export_policy(export: Callable[[Path], None], path: Path, card: str) -> None:
    """Export the policy and its model card into a folder, completely or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        export(partial)
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

On {tasks} held-out tasks (panel {panel}), each attempted {attempts} times, with 95% intervals over tasks:

| | avg@{k} | pass@{k} |
|---|---|---|
| before | {before} |
| after | {after} |

It was trained for this environment only and has not been evaluated elsewhere. {recipe_note}:

```toml
{recipe}
```
"""


def model_card(summary: Mapping[str, Any], recipe_toml: str) -> str:
    """Return the model card: where the policy comes from, its scores, and the recipe that repeats the run."""
    k = summary["k"]
    scores = {
        when: " | ".join(format_estimate(summary[when][f"{name}@{k}"]) for name in ("avg", "pass"))
        for when in ("before", "after")
    }
    version, changes = summary["versions"]["seeupo"], changes_text(summary["changes"])
    note = "The recipe that repeats the run"
    if changes is not None:
        note = f"Settings were changed during the run, {changes}. Its last recipe"
    return CARD.format(**{**summary, **scores}, version=version, recipe=recipe_toml.rstrip(), recipe_note=note)
