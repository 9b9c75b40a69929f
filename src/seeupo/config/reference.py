"""The page docs/configuration.md, made from the types of a recipe, so that it cannot fall behind them.

python -m seeupo.config.reference > docs/configuration.md
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from typing import Any

from seeupo.config.loader import REGISTRIES, Key, alternatives, in_words, keys_of, recipe_from_table, registered_name
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

This page is made from the code by `python -m seeupo.config.reference > docs/configuration.md`.

A run is described by a recipe, a TOML file whose tables are the sections below. What a file leaves out has its default.
A recipe is given by the name of one that comes with the library (`seeupo recipes list`), or as a path: what ends in
`.toml` or has a folder in it is a file.

Single keys are replaced on the command line, as section, dot, name. The value is written as in TOML; quotes around text
may be left out:

    seeupo train NAME --agent.max_turns 6 --algorithm.order natural --algorithm.clip '[0.1, 0.2]'
    seeupo train ./mine.toml --environment.options.surface natural --optimizer.trainable '["lm_head"]'

TOML has no null. The text `"none"` stands for it where the type below says so, in place of a whole section too:
`warm_start = "none"` switches the warm start off, a table `[warm_start]` switches it on, and so does a key of it on the
command line. An environment's options are passed on as they are written. A number may be written as a whole number.
Infinity, not-a-number, dates, and whole numbers of more than 64 bits are accepted nowhere.

Nothing is ignored and nothing is guessed: a file with mistakes is refused before anything starts, with all of them at
once.

```toml
{example}```

has three, and this is what is said:

```text
{answer}
```
"""


def reference() -> str:
    """The page, in Markdown."""
    blocks = [
        INTRODUCTION.format(example=EXAMPLE, answer=answer()),
        "## Sections\n",
        *_table(Recipe),
        *_sections(Recipe, ""),
    ]
    return "\n".join(blocks)


def answer() -> str:
    """What is said about the example."""
    try:
        recipe_from_table(tomllib.loads(EXAMPLE))
    except ConfigError as error:
        return str(error)
    raise AssertionError("the example is meant to have mistakes")


def _sections(section: Any, prefix: str) -> Iterator[str]:
    for key in keys_of(section).values():
        name = prefix + key.name
        heading = "##" if prefix == "" else "###"
        if key.hint in REGISTRIES:
            registry = REGISTRIES[key.hint]
            default = registered_name(registry, key.default)
            names = ", ".join(f"`{toml(entry)}`" for entry in registry)
            yield f"\n{heading} {name}\n"
            yield f"`name` is one of {names}; default: `{toml(default)}`. The other keys depend on it."
            for entry, picked in registry.items():
                yield from _section(picked, f"{heading}# {name}, name = {toml(entry)}")
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
    for key in keys_of(section).values():
        if key.set_by is None:
            meaning = meanings.get(key.name) or " ".join(summary(part) for part in alternatives(key.hint)).strip()
            cells = [f"`{key.name}`", in_words(key.hint), _default(key), meaning]
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: Key) -> str:
    if key.default is MISSING:
        return "needed"
    if is_dataclass(key.default):
        return "its keys' defaults"
    return f"`{toml('none' if key.default is None else key.default)}`"


def summary(section: Any) -> str:
    """The first paragraph of a dataclass's docstring, on one line; empty for anything else."""
    return " ".join(_docstring(section).split("\n\n", 1)[0].split())


def attributes(section: Any) -> dict[str, str]:
    """What the docstring's `Attributes:` says about each name, on one line; what a base says holds unless it does."""
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
