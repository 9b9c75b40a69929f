"""Generate docs/reference/configuration.md from the types and docstrings of a recipe.

python -m seeupo.config.reference > docs/reference/configuration.md
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from typing import Any

from seeupo.config.keys import REGISTRIES, Key, alternatives, describe_type, keys_of
from seeupo.config.loader import recipe_from_table
from seeupo.config.schema import Recipe
from seeupo.config.toml import toml
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

Single keys are overridden on the command line with `--section.key value`. Values are written as in TOML, and strings
need no quotes:

    seeupo train NAME --agent.max_turns 6 --algorithm.order natural --algorithm.clip '[0.1, 0.2]'
    seeupo train ./mine.toml --environment.options.surface natural --optimizer.trainable '["lm_head"]'

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


def reference() -> str:
    """Return the page as Markdown."""
    parts = [
        INTRODUCTION.format(example=EXAMPLE, problems=example_problems()),
        "## Sections\n",
        *_table(Recipe),
        *_sections(Recipe, ""),
    ]
    return "\n".join(parts)


def example_problems() -> str:
    """Return the error that the example causes."""
    try:
        recipe_from_table(tomllib.loads(EXAMPLE))
    except ConfigError as error:
        return str(error)
    raise AssertionError("the example must contain mistakes")


def _sections(section: Any, prefix: str) -> Iterator[str]:
    for key in keys_of(section).values():
        name = prefix + key.name
        heading = "##" if prefix == "" else "###"
        if key.hint in REGISTRIES:
            registry = REGISTRIES[key.hint]
            default = key.default.name
            names = ", ".join(f"`{toml(entry)}`" for entry in registry)
            yield f"\n{heading} {name}\n"
            yield f"`name` is one of {names}; default: `{toml(default)}`. The other keys depend on it."
            yield 'An algorithm of another package is named by its entry point, or by its class: "module:Class" or'
            yield '"path/to/file.py:Class".'
            for entry, picked in registry.items():
                yield from _section(picked, f"{heading}# {name}, name = {toml(entry)}")
                yield from _sections(picked, f"{name}.")
        for part in alternatives(key.hint):
            if is_dataclass(part) and part not in REGISTRIES:
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
    for key in keys_of(section).values():
        if key.set_by is None:
            meaning = meanings.get(key.name) or " ".join(summary(part) for part in alternatives(key.hint)).strip()
            cells = [f"`{key.name}`", describe_type(key.hint), _default(key), meaning]
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: Key) -> str:
    if key.default is MISSING:
        return "required"
    if is_dataclass(key.default):
        return "defaults below"
    return f"`{toml('none' if key.default is None else key.default)}`"


def summary(section: Any) -> str:
    """Return the first paragraph of a dataclass's docstring, on one line; empty for anything else."""
    return " ".join(_docstring(section).split("\n\n", 1)[0].split())


def attributes(section: Any) -> dict[str, str]:
    """Return the description of each name in the docstrings' `Attributes:`, on one line; bases come first."""
    meanings: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if is_dataclass(base):
            meanings |= _own_attributes(base)
    return meanings


def _own_attributes(section: Any) -> dict[str, str]:
    _, _, block = _docstring(section).partition("\nAttributes:\n")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in block.splitlines():
        entry = re.match(r" {4}(\w+(?:, \w+)*): (.*)", line)
        if entry:
            names = entry[1].split(", ")
            meanings.update(dict.fromkeys(names, entry[2].strip()))
        elif line.startswith(" " * 5):
            meanings.update({name: f"{meanings[name]} {line.strip()}" for name in names})
        elif line.strip():
            break
    return meanings


def _docstring(section: Any) -> str:
    text = inspect.getdoc(section) if is_dataclass(section) else None
    # A dataclass without a docstring is given its signature as one.
    return "" if text is None or text.startswith(f"{section.__name__}(") else text


if __name__ == "__main__":
    sys.stdout.write(reference())
