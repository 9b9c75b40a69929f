"""Generate docs/reference/configuration.md and the JSON schema from the types and docstrings of a recipe.

python -m seeupo.config.reference > docs/reference/configuration.md
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from typing import Any, Literal, get_args, get_origin

from seeupo.config.algorithms import AlgorithmSettings
from seeupo.config.json_schema import section_schema
from seeupo.config.keys import Key, attributes, keys_of, settable_keys, summary
from seeupo.config.loader import recipe_from_table
from seeupo.config.option_types import alternatives, describe_type
from seeupo.config.schema import Recipe
from seeupo.config.toml import toml
from seeupo.config.unknown_keys import algorithm_sections
from seeupo.envs.registry import SPECS
from seeupo.errors import ConfigError

EXAMPLE = """\
[agent]
max_turn = 6
temperature = "warm"

[algorithm]
name = "seeupo"
learning_rate = 1e-5
"""
"""Three mistakes: a misspelled key, a value of the wrong type, a key in the wrong section."""

INTRODUCTION = """\
# Configuration

This page is generated: `python -m seeupo.config.reference > docs/reference/configuration.md`.

A recipe is a TOML file that describes a training run. Its tables are the sections below; missing keys have their
defaults. Commands take the name of a shipped recipe (`seeupo recipes list`) or a path: an argument that ends in `.toml`
or contains a directory is a path.

Single keys are overridden on the command line with `--section.key value`, and `-o key=value` sets an option of an
environment in commands without a recipe. Both take values as in TOML or as in JSON; strings need no quotes:

    seeupo train NAME --agent.max_turns 6 --algorithm.order natural --algorithm.clip '[0.1, 0.2]'
    seeupo train ./mine.toml --environment.options.surface natural --optimizer.trainable '["lm_head"]'
    seeupo envs check pocket -o surface=natural -o turns='[2, 3]'
    seeupo envs play gymnasium -o make=my_envs.py:Grid -o arguments='{{size = 8, wrap = true}}'
    seeupo envs play gymnasium -o make=my_envs.py:Grid -o arguments='{{"size": 8, "wrap": true}}'

TOML has no null. The string `"none"` takes its place where the type below allows it, also for a whole section:
`warm_start = "none"` switches the warm start off; a table `[warm_start]`, or one of its keys on the command line,
switches it on. The options of an environment are passed to it unchanged. Integers are accepted as numbers.
Infinity, NaN, dates, and integers of more than 64 bits are never accepted.

`seeupo recipes schema > seeupo.schema.json` writes a JSON schema. Editors with a TOML language server such as Taplo use
it to complete and check keys when the file starts with `#:schema ./seeupo.schema.json`.

No key is ignored. A file with mistakes is rejected before anything starts, and all of them are reported at once:

```toml
{example}```

```text
{problems}
```
"""

CONSENT = "only with your [consent](../explanation/security.md#code-that-a-file-names)"
CODE, IN_PROCESS = "a module or a Python file", f"imported {CONSENT}, in the training process"
NAMES: Mapping[str, tuple[str, str] | None] = {
    "model.name": (
        "a folder, or a model on a model hub",
        "read as safetensors and JSON, never as code; downloaded from the hub that your Hugging Face settings name",
    ),
    "model.device": None,
    "model.lora.targets": None,
    "model.lora.per_role": None,
    "environment.name": (CODE, f"imported {CONSENT}, in workers"),
    "environment.options": ("what the environment says", "passed to the environment, in workers"),
    "environment.train_split": None,
    "environment.test_split": None,
    "agent.program": (CODE, IN_PROCESS),
    "collect.reward": (CODE, IN_PROCESS),
    "algorithm.name": (CODE, IN_PROCESS),
    "optimizer.trainable": None,
    "critic.optimizer.trainable": None,
    "engine.address": (
        "a host",
        f"joined {CONSENT}, because a Ray cluster can run code in the training process; `ray://` is always refused",
    ),
    "warm_start.file": ("a file", "read as data by the training process; its text becomes training data"),
    "trackers.wandb": (
        "a project of Weights & Biases",
        'with `wandb_mode = "online"`, metrics and settings are sent to it, with the account and to the server of your '
        "own W&B settings",
    ),
}
"""For each key that accepts text: what it names outside of the run, and the rule for recipes of strangers."""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [
        INTRODUCTION.format(example=EXAMPLE, problems=example_problems()),
        "## Sections\n",
        *_table(Recipe),
        *_sections(Recipe, ""),
        *_names(),
    ]
    return "\n".join(parts)


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe, with which editors complete and check TOML files."""
    choices = []
    for name, options in algorithm_sections().items():
        choice = section_schema(options)
        choice["properties"] = {"name": {"const": name}, **choice["properties"]}
        choice["required"] += [] if name == AlgorithmSettings.name else ["name"]
        choices.append(choice)
    schema = section_schema(Recipe, algorithm={"oneOf": choices})
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "SeeUPO recipe", **schema}


def example_problems() -> str:
    """Return the error that the example causes."""
    try:
        recipe_from_table(tomllib.loads(EXAMPLE))
    except ConfigError as error:
        return str(error)
    raise AssertionError("the example must contain mistakes")


def text_keys(section: Any = Recipe, prefix: str = "") -> list[str]:
    """Return the dotted keys that accept text of any kind, so that they may name code, a host or a file."""
    keys = []
    for key in settable_keys(section):
        name = prefix + key.name
        if key.hint is AlgorithmSettings:
            keys.append(f"{name}.name")
            sections: Iterable[Any] = algorithm_sections().values()
        else:
            keys += [name] if takes_text(key.hint) else []
            sections = (part for part in alternatives(key.hint) if is_dataclass(part))
        for inner in sections:
            keys += text_keys(inner, f"{name}.")
    return keys


def takes_text(hint: Any) -> bool:
    """Return whether values of a type may contain text that is not one of a few choices."""
    if get_origin(hint) is Literal:
        return False
    return hint in (str, Any) or any(map(takes_text, get_args(hint)[get_origin(hint) is Mapping :]))


def _names() -> Iterator[str]:
    """Yield the table of keys that name something outside of the run.

    Raises:
        LookupError: A key has no rule.
    """
    if missing := [key for key in text_keys() if key not in NAMES]:
        raise LookupError(f"{', '.join(missing)}: what the text names, and its rule, are not in {__name__}.NAMES")
    yield "\n## What keys may name\n"
    yield "A recipe may come from a stranger, so these keys, which name something outside of the run, have rules:\n"
    yield "| key | names | rule |"
    yield "|---|---|---|"
    for key, entry in NAMES.items():
        if entry is not None:
            yield f"| `{key}` | {entry[0]} | {entry[1]} |"
        if key == "environment.options":
            yield from _option_names()
    others = ", ".join(f"`{key}`" for key, entry in NAMES.items() if entry is None)
    yield "\nThe text of the other keys is only compared with names inside of the run:"
    yield f"{others}."
    yield "A study file sets the same keys by the same rules; its `recipe` is the name or the path of a recipe."


def _option_names() -> Iterator[str]:
    for spec in SPECS:
        for option in spec.code_options:
            yield f"| `environment.options.{option}`, {spec.name} | {CODE} | imported {CONSENT}, in workers |"
        for option in spec.file_options:
            rule = "read as data by workers, which see no other files of yours"
            yield f"| `environment.options.{option}`, {spec.name} | a file or a folder | {rule} |"


def _sections(section: Any, prefix: str) -> Iterator[str]:
    for key in keys_of(section).values():
        name = prefix + key.name
        heading = "##" if prefix == "" else "###"
        if key.hint is AlgorithmSettings:
            algorithms = algorithm_sections()
            names = ", ".join(f"`{toml(algorithm)}`" for algorithm in algorithms)
            yield f"\n{heading} {name}\n"
            yield f"`name` is one of {names}; default: `{toml(AlgorithmSettings.name)}`. The other keys depend on it."
            yield 'An algorithm of another package is named by its entry point, or by its class: "module:Class" or'
            yield '"path/to/file.py:Class".'
            for algorithm, options in algorithms.items():
                yield from _section(options, f"{heading}# {name}, name = {toml(algorithm)}")
                yield from _sections(options, f"{name}.")
            continue
        for part in alternatives(key.hint):
            if is_dataclass(part):
                yield from _section(part, f"{heading} {name}")
                yield from _sections(part, f"{name}.")


def _section(section: Any, heading: str) -> Iterator[str]:
    yield f"\n{heading}\n"
    yield f"{summary(section)}\n"
    yield from _table(section)


def _table(section: Any) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    meanings = attributes(section)
    for key in settable_keys(section):
        meaning = meanings.get(key.name) or " ".join(summary(part) for part in alternatives(key.hint)).strip()
        cells = [f"`{key.name}`", describe_type(key.hint), _default(key), meaning]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: Key) -> str:
    if key.default is MISSING:
        return "required"
    if is_dataclass(key.default):
        return "defaults below"
    return f"`{toml('none' if key.default is None else key.default)}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
