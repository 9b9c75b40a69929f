"""Export the policy of a run as a Hugging Face folder with a model card."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError

import seeupo
from seeupo.config.changes import changes_text
from seeupo.config.model_settings import VLLM_RANKS
from seeupo.core.statistics import format_estimate
from seeupo.errors import RunError
from seeupo.models.catalog import CATALOG
from seeupo.models.loading import load_policy
from seeupo.models.location import ADAPTER_CONFIG, has_turn_adapters, is_adapter
from seeupo.models.lora.adapter_folders import BASE, read_adapter
from seeupo.models.lora.turn_adapters import read_index
from seeupo.models.saving import save_model
from seeupo.runs.checkpoints import Checkpoint
from seeupo.runs.reader import StoredRun, read_run
from seeupo.runs.run_directory import RECIPE, RunDirectory
from seeupo.utils.atomic_files import partial_folder, sync_folder, sync_tree
from seeupo.utils.output_paths import check_output

CARD_FILE = "README.md"
MODEL_SUFFIXES = {".json", ".safetensors", ".jinja", ".txt", ".model", ".md"}
TRAINING_FILES = {"state.json", "manifest.json", "engine.json"}
"""Files of a checkpoint that only a resumed run needs."""


@dataclass(frozen=True)
class ExportedPolicy:
    """An exported policy: its folder, the iterations before it, and the base model if the folder has adapters."""

    path: Path
    iteration: int
    base: str | None


def export(
    run_dir: Path | str,
    out: Path | str,
    *,
    checkpoint: int | Literal["best"] | None = None,
    merge: bool = False,
) -> ExportedPolicy:
    """Write the policy of a run as a folder for transformers: weights, tokenizer, chat template and model card.

    The folder appears when it is complete. A LoRA run gives an adapter folder for peft unless `merge` is set; with one
    adapter per turn, a folder for each.

    Args:
        run_dir: Run directory.
        out: New folder.
        checkpoint: Iteration of a checkpoint, or "best"; the final policy by default.
        merge: Merge LoRA adapters into the weights of the base model. Has no effect on full weights.
    """
    out = Path(out)
    _check_new(out)
    run = RunDirectory.open(Path(run_dir))
    source, iteration, summary = _source(run, checkpoint, merge=merge)
    adapter = read_adapter(source) if is_adapter(source) else None
    base = None if adapter is None or merge else adapter.base
    if has_turn_adapters(source):
        if merge:
            raise RunError(f"{run.path} has one adapter per turn or role, which cannot be merged; omit --merge")
        _, base = read_index(source)
    try:
        with partial_folder(out) as partial:
            if adapter is not None and merge:
                dtype = str(read_run(run.path).setting("model", "dtype") or "float32")
                policy = load_policy(str(source), device="cpu", dtype=dtype, frozen=True)
                save_model(policy.model, policy.tokenizer, partial)
            else:
                _copy_model(source, partial)
            if summary is not None:
                recipe = (run.path / RECIPE).read_text(encoding="utf-8")
                (partial / CARD_FILE).write_text(model_card(summary, recipe, partial), encoding="utf-8")
            sync_tree(partial)
            _check_new(out)
            partial.rename(out)
            sync_folder(out.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{out} cannot be written: {reason}; nothing was left behind") from error
    return ExportedPolicy(out, iteration, base)


def _check_new(out: Path) -> None:
    if os.path.lexists(out):
        raise RunError(f"{out} already exists; choose a new folder")
    check_output(out, folder=True)
    if not out.absolute().parent.is_dir():
        raise RunError(f"{out} cannot be written: the directory {out.parent} does not exist; create it first")


def _source(
    run: RunDirectory, checkpoint: int | Literal["best"] | None, *, merge: bool
) -> tuple[Path, int, dict[str, Any] | None]:
    """Return the folder of the policy to export, its iteration, and what its model card says unless it has one."""
    stored = read_run(run.path)
    if checkpoint is None:
        if not run.policy_path.is_dir() or type(stored.summary.get("iterations")) is not int:
            raise RunError(
                f"{run.path} has no final policy yet; finish the run (seeupo train --resume {run.path}), or export a "
                "checkpoint: --best or --checkpoint N"
            )
        iteration: int = stored.summary["iterations"]
        if merge or not isinstance(stored.setting("model", "lora"), Mapping):
            return run.policy_path, iteration, None  # adapters are merged there
        checkpoint = iteration
    source = run.checkpoints().find(run.checkpoint_number(checkpoint))
    return source.path, source.iteration, _summary(stored, source)


def _copy_model(source: Path, target: Path) -> None:
    """Copy the files of a model, an adapter or a tokenizer. Links are left out: they may lead anywhere."""
    for path in sorted(source.iterdir()):
        if path.is_symlink() or path.name in TRAINING_FILES:
            continue
        if path.is_file() and path.suffix in MODEL_SUFFIXES:
            shutil.copyfile(path, target / path.name)
        elif path.is_dir() and (path.name == BASE or (path / ADAPTER_CONFIG).is_file()):
            (target / path.name).mkdir()
            _copy_model(path, target / path.name)
    if not list(target.glob("*.safetensors")) and not has_turn_adapters(target):
        raise RunError(f"{source} has no weights to export; expected .safetensors files")


def export_policy(export: Callable[[Path], None], path: Path, card: Callable[[Path], str]) -> None:
    """Export the final policy and its model card into a folder, completely or not at all; replaces an older one.

    `card` returns the model card of the folder.
    """
    partial, replaced = (path.with_name(f".{path.name}.{state}") for state in ("partial", "replaced"))
    for folder in (partial, replaced):
        shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
    partial.mkdir(parents=True)
    try:
        export(partial)
        (partial / CARD_FILE).write_text(card(partial), encoding="utf-8")
        sync_tree(partial)
        if path.exists():
            path.rename(replaced)  # a killed process must not leave half of a policy under its name
        partial.rename(path)
        sync_folder(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


CARD = """---
library_name: {library}
pipeline_tag: text-generation
tags: [seeupo, reinforcement-learning, agent]
---

# An agent for {environment}, trained with {algorithm}

`{model}` was trained on tasks of `{environment}` by reinforcement learning: {iterations} iterations,
{optimizer_steps} optimizer steps, with seeupo {version}.
{usage}{scores}
It was trained for this environment only and has not been evaluated elsewhere. {recipe_note}:

```toml
{recipe}
```
"""

SCORES = """
On {tasks} held-out tasks (panel {panel}), each attempted {attempts} times, with 95% intervals over tasks:

| | avg@{k} | pass@{k} |
|---|---|---|
| before | {before} |
| after | {after} |
"""

FULL_USAGE = """
To serve it with FOLDER for the path of this folder, which is then the name of the model in requests:

```sh
vllm serve FOLDER
transformers serve FOLDER
```
"""

ADAPTER_USAGE = """
This folder has the LoRA adapter only. Load it onto its base model{where}, with FOLDER for the path of this folder:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base}), "FOLDER")
```

To serve it as the model `agent` (`transformers serve` loads no adapters, but the folder of `seeupo export --merge`):

```sh
vllm serve {shell_base} --enable-lora --max-lora-rank {rank} --lora-modules agent=FOLDER
```
"""


TURN_ADAPTERS_USAGE = """
This folder has one LoRA adapter per {unit}.
Load them onto their base model{where}, with FOLDER for the path of this folder, and activate the adapter of each
turn. Keys and values that another adapter computed must not be reused.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base}), "FOLDER/{first}", "{first}")
for name in {others}:
    model.load_adapter(f"FOLDER/{{name}}", name)
model.set_adapter("{first}")  # before each turn
```

vLLM serves each adapter as a model of its own; the client names that of the turn in each request. `transformers serve`
loads no adapters.

```sh
vllm serve {shell_base} --enable-lora --max-loras {count} --max-lora-rank {rank} --lora-modules {modules}
```
"""


def model_card(summary: Mapping[str, Any], recipe_toml: str, folder: Path) -> str:
    """Return the model card: where the policy comes from, how to load and serve it, its scores, and the recipe."""
    k = summary["k"]
    rows = {}
    for when in ("before", "after"):
        scores = summary[when] or {}
        texts = [format_estimate(scores[name]) if scores else "not evaluated" for name in (f"avg@{k}", f"pass@{k}")]
        rows[when] = " | ".join(texts)
    note = "The recipe that repeats the run"
    if (changes := changes_text(summary["changes"])) is not None:
        note = f"Settings were changed during the run, {changes}. Its last recipe"
    return CARD.format(
        **summary,
        library="peft" if is_adapter(folder) or has_turn_adapters(folder) else "transformers",
        version=summary["versions"]["seeupo"],
        usage=_usage(folder),
        scores="" if k is None else SCORES.format(**{**summary, **rows}),
        recipe=recipe_toml.rstrip(),
        recipe_note=note,
    )


def _usage(folder: Path) -> str:
    """Return the section of the model card that says how to load and serve the policy."""
    if has_turn_adapters(folder):
        adapters, base = read_index(folder)
        first, *others = adapters.names
        agent = "t" if adapters.turns_per_agent == 1 else f"ceil(t / {adapters.turns_per_agent})"
        unit = f"turn: turn t of an episode, from 1, is sampled with `turn_a`, where a = min({agent}, {adapters.count})"
        if adapters.roles:
            unit = f"role: calls of the agent program as {adapters.roles[0]!r} are sampled with `{first}`, and so on"
        return TURN_ADAPTERS_USAGE.format(
            unit=unit,
            first=first,
            others=others,
            count=adapters.count,
            rank=_vllm_rank(read_adapter(folder / first, base=base).rank),
            modules=" ".join(f"{name}=FOLDER/{name}" for name in adapters.names),
            **_base(folder, base),
        )
    if is_adapter(folder):
        adapter = read_adapter(folder)
        return ADAPTER_USAGE.format(rank=_vllm_rank(adapter.rank), **_base(folder, adapter.base))
    return FULL_USAGE


def _vllm_rank(rank: int) -> int:
    """Return vLLM's option for adapters of a rank; it serves none of a higher one than the last."""
    return next((option for option in VLLM_RANKS if option >= rank), rank)


def _base(folder: Path, base: str) -> dict[str, str]:
    """Return the base model of adapters as a literal of Python and of a shell, and a note on where it is."""
    if Path(base).is_relative_to(folder):
        base = f"FOLDER/{BASE}"
        return {"base": json.dumps(base), "shell_base": base, "where": f", the folder `{BASE}`"}
    note = f" from the catalog of seeupo (`seeupo models fetch {base}`)" if base in CATALOG else ""
    return {"base": json.dumps(base), "shell_base": shlex.quote(base), "where": note}


def _summary(run: StoredRun, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what the model card of a checkpoint says: as the summary of a run that ended there."""
    evaluations = {evaluation.iteration: evaluation for evaluation in run.evaluations}
    before = evaluations.get(0)
    after = evaluations.get(checkpoint.iteration)
    evaluated = after or before or next(iter(evaluations.values()), None)
    summary: dict[str, Any] = {
        "model": run.setting("model", "name"),
        "environment": run.setting("environment", "name"),
        "algorithm": run.setting("algorithm", "name"),
        "iterations": checkpoint.iteration,
        "optimizer_steps": checkpoint.state.get("optimizer_steps", 0),
        "k": None,
        "before": before and before.summary,
        "after": after and after.summary,
        "changes": run.env_info.get("changes", []),
        "versions": {"seeupo": seeupo.__version__},
    }
    if evaluated is not None:
        plan = evaluated.evaluation.plan
        summary |= {name: getattr(plan, name) for name in ("environment", "k", "attempts", "panel")}
        summary["tasks"] = evaluated.summary["tasks"]
    return summary
