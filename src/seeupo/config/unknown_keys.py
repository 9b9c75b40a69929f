"""Walk over the keys of a recipe, and explain keys that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from seeupo.config.algorithms import AlgorithmSettings, options_class, shipped_algorithms
from seeupo.config.keys import keys_of, settable_keys
from seeupo.config.option_types import alternatives
from seeupo.config.schema import Recipe
from seeupo.config.toml import dotted


def algorithm_sections() -> dict[str, Any]:
    """Return the options of the shipped algorithms: the table `algorithm` has the keys that its key `name` selects."""
    return {name: options_class(name) for name in shipped_algorithms()}


def sections_of(hint: Any) -> list[Any]:
    """Return the dataclasses that a table of this type may describe."""
    if hint is AlgorithmSettings:
        return list(algorithm_sections().values())
    return [part for part in alternatives(hint) if is_dataclass(part)]


def hint_at(path: Sequence[str]) -> Any:
    """Return the type of a key of the recipe, or Any if there is no such key."""
    hint: Any = Recipe
    for name in path:
        hint = next((keys[name].hint for section in sections_of(hint) if name in (keys := keys_of(section))), Any)
    return hint


def explain_unknown(name: str, section: Any, prefix: str, *, is_table: bool) -> str:
    """Return the problem with a `name` that the dataclass `section`, at the dotted key `prefix`, does not have."""
    path = dotted(prefix, name)
    kind = "section" if is_table and section is Recipe else "key"
    return f"{path}: unknown {kind}; {_suggest_key(name, section, prefix)}"


def _suggest_key(name: str, section: Any, prefix: str) -> str:
    """Suggest keys of the same section first, then keys of other sections with the same or a similar name."""
    algorithms = algorithm_sections()
    if section in algorithms.values():
        others = [other for other, options in algorithms.items() if name in keys_of(options)]
        if others:
            return f"it is an option of {', '.join(others)}"
    section_names = [key.name for key in settable_keys(section)]
    of_another_file = prefix == "" and section is not Recipe  # such as a study
    keys = () if of_another_file else _recipe_keys(Recipe)
    elsewhere = [key for key in keys if key.path != dotted(prefix, name)]
    names = sorted({key.name for key in elsewhere})
    near = difflib.get_close_matches(name[:60], section_names, n=1)
    if near and name not in names:
        return f"did you mean {dotted(prefix, near[0])}?"
    near_names = [name] if name in names else difflib.get_close_matches(name[:60], names, n=1)
    matches = [key for key in elsewhere if key.name in near_names]
    matches = [key for key in matches if not key.off] or matches
    paths = " or ".join(dict.fromkeys(key.path for key in matches))
    return f"did you mean {paths}?" if paths else f"available: {', '.join(section_names)}"


class _RecipeKey(NamedTuple):
    """A key of the recipe: its dotted path, its last name, and whether its section is off by default."""

    path: str
    name: str
    off: bool


def _recipe_keys(section: Any, prefix: str = "", *, off: bool = False) -> Iterator[_RecipeKey]:
    for key in settable_keys(section):
        path = prefix + key.name
        yield _RecipeKey(path, key.name, off)
        if key.hint is AlgorithmSettings:
            yield _RecipeKey(f"{path}.name", "name", off)
        for inner in sections_of(key.hint):
            yield from _recipe_keys(inner, f"{path}.", off=off or key.default is None)
