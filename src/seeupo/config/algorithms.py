"""The algorithm of a recipe: its name, its options, and classes of other packages and of the user.

`name` is that of a shipped algorithm, that of an entry point in the group "seeupo.algorithms", or a reference:
"module:Class" or "path/to/file.py:Class". Reading a recipe imports no algorithm: the options of the shipped ones are
described in algorithms.json, which `python -m seeupo.algorithms.table` writes. `load_algorithm` imports what a recipe
names, with the user's consent.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any, cast

from seeupo.config.json_schema import section_from_schema, section_schema
from seeupo.config.toml import format_value
from seeupo.envs.declare import Role, declares, requirement
from seeupo.envs.references import class_reference, resolve, split, why_not_importable
from seeupo.envs.trust import check_trust
from seeupo.errors import ConfigError
from seeupo.protocols import Algorithm, Need

GROUP = "seeupo.algorithms"
REFERENCE_OPTIONS = ("kl_coef", "kl_reward_coef")
"""Options that need a reference policy unless they are 0."""


@cache
def shipped_algorithms() -> dict[str, dict[str, Any]]:
    """Return the entries of the shipped algorithms by name."""
    table: dict[str, dict[str, Any]] = json.loads((files("seeupo.config") / "algorithms.json").read_text("utf-8"))
    return table


def algorithm_entry(algorithm: type[Algorithm]) -> dict[str, Any]:
    """Describe an algorithm for commands that do not import it: class, method, needs, and the schema of its options.

    `needs` are those that do not depend on options.
    """
    options: Any = {name: 0.0 for name in REFERENCE_OPTIONS if name in section_schema(algorithm)["properties"]}
    return {
        "class": f"{algorithm.__module__}:{algorithm.__qualname__}",
        "method": inspect.getdoc(sys.modules[algorithm.__module__]) or "",
        "needs": sorted(algorithm(**options).needs),
        **section_schema(algorithm),
    }


@cache
def options_class(name: str) -> type:
    """Return a dataclass with the options of a shipped algorithm."""
    return section_from_schema(name, shipped_algorithms()[name])


@dataclass(frozen=True, kw_only=True)
class AlgorithmSettings:
    """Name and options of an algorithm.

    Attributes:
        name: Name of a shipped algorithm or of an entry point, or a reference to a class.
        options: Values by option, complete with defaults unless the name is that of a class that is not loaded.
        made_by: Class of the algorithm, if it is loaded and not a shipped one.
    """

    name: str = "seeupo"
    options: Mapping[str, Any] = field(default_factory=dict)
    made_by: type[Algorithm] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        section = options_class(self.name) if self.name in shipped_algorithms() else self.made_by
        if section is not None:
            object.__setattr__(self, "options", option_values(_read_options(section, self.options)))

    @classmethod
    def from_algorithm(cls, algorithm: Algorithm | type[Algorithm]) -> AlgorithmSettings:
        """Return the settings of an algorithm object, or of a class with its default options.

        A class of the user's is named by module and class.
        """
        if isinstance(algorithm, type):
            algorithm = algorithm()
        made_by = type(algorithm)
        path = f"{made_by.__module__}:{made_by.__qualname__}"
        shipped = next((name for name, entry in shipped_algorithms().items() if entry["class"] == path), None)
        if shipped is not None:
            return cls(name=shipped, options=option_values(algorithm))
        return cls(name=class_reference(made_by), options=option_values(algorithm), made_by=made_by)

    def build(self) -> Algorithm:
        """Create the algorithm.

        Raises:
            ConfigError: It is not a shipped one, and its code is not loaded.
        """
        if self.name in shipped_algorithms():
            return cast("Algorithm", _read_options(load_class(self.name), self.options))
        if self.made_by is None:
            raise ConfigError([f"algorithm.name = {self.name!r}: its code is not loaded. Call `load_algorithm` first."])
        return cast("Algorithm", _read_options(self.made_by, self.options))

    @property
    def needs(self) -> frozenset[Need]:
        """Features that the engine must have besides log-probs and steps."""
        if self.name not in shipped_algorithms():
            return self.build().needs
        return needs_with(shipped_algorithms()[self.name], self.options)


def needs_with(entry: Mapping[str, Any], options: Mapping[str, Any]) -> frozenset[Need]:
    """Return what an algorithm with this entry needs with these options."""
    reference = any(options.get(name) for name in REFERENCE_OPTIONS)
    return frozenset([*entry["needs"], "reference"] if reference else entry["needs"])


def _read_options(section: Any, options: Mapping[str, Any]) -> Any:
    """Return the dataclass that a table of options describes."""
    from seeupo.config.reader import Reader

    reader = Reader()
    values = reader.section(section, options, "algorithm")
    if reader.problems:
        raise ConfigError(reader.problems)
    return values


def option_values(algorithm: Any) -> dict[str, Any]:
    """Return the values of the options of an algorithm; nested options are tables."""
    values = {option.name: getattr(algorithm, option.name) for option in fields(algorithm)}
    return {name: option_values(value) if is_dataclass(value) else value for name, value in values.items()}


def is_reference(name: str) -> bool:
    """Return whether an algorithm is named by its class, "module:Class" or "path/to/file.py:Class"."""
    return ":" in name


def plugin_names() -> list[str]:
    """Return the names of the algorithms of installed packages; they cannot replace shipped ones."""
    return sorted({entry.name for entry in entry_points(group=GROUP)} - shipped_algorithms().keys())


def load_class(name: str) -> type[Algorithm]:
    """Import the class of an algorithm: a shipped one, one of an installed package, or a reference."""
    if name in shipped_algorithms():
        module, _, class_name = shipped_algorithms()[name]["class"].partition(":")
        return cast("type[Algorithm]", getattr(import_module(module), class_name))
    if is_reference(name):
        loaded = resolve(name, Role.ALGORITHM)
    else:
        (entry,) = entry_points(group=GROUP, name=name)
        loaded = entry.load()
    if not (declares(loaded, Role.ALGORITHM) and is_dataclass(loaded)):
        raise ConfigError([f"algorithm.name = {name!r}: expected {requirement(Role.ALGORITHM)}, as a dataclass."])
    return cast("type[Algorithm]", loaded)


def load_algorithm(settings: AlgorithmSettings, trust: Collection[str] = ()) -> AlgorithmSettings:
    """Return the settings with the class loaded that they name, unless it is a shipped one, and their options checked.

    Args:
        trust: References that may be imported.

    Raises:
        TrustError: The name is a reference that is not trusted.
        ConfigError: The class does not have such options, or the name is not that of a class.
    """
    if settings.made_by is not None or settings.name in shipped_algorithms():
        return settings
    check_trust(algorithm_code(settings), trust)
    return AlgorithmSettings(name=settings.name, options=settings.options, made_by=load_class(settings.name))


def algorithm_code(settings: AlgorithmSettings) -> tuple[str, ...]:
    """Return the reference to code in the settings, if their name is one.

    Raises:
        ConfigError: It names a class that only the program that defined it has.
    """
    if not is_reference(settings.name):
        return ()
    module, name = split(settings.name)
    here = module == "__main__" and hasattr(sys.modules[module], name)  # as in the notebook that started the run
    if settings.made_by is None and not here and (reason := why_not_importable(settings.name)) is not None:
        remedy = "when you resume: --algorithm.name my_module:" + name.rpartition(".")[2]
        raise ConfigError([f"algorithm.name = {format_value(settings.name)}: the algorithm {reason} {remedy}"])
    return (settings.name,)
