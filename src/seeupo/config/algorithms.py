"""The algorithm of a recipe: its name, its options, and classes of other packages and of the user.

`name` is that of a shipped algorithm, that of an entry point in the group "seeupo.algorithms", or a reference:
"module:Class" or "path/to/file.py:Class". Reading a recipe never imports what it names; `load_algorithm` does, with the
user's consent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any, cast

from seeupo.algorithms import ALGORITHMS
from seeupo.envs.declare import Role, declares, requirement
from seeupo.envs.references import class_reference, resolve
from seeupo.envs.trust import check_trust
from seeupo.errors import ConfigError
from seeupo.protocols import Algorithm, Need

GROUP = "seeupo.algorithms"


@dataclass(frozen=True, kw_only=True)
class AlgorithmSettings:
    """Name and options of an algorithm.

    Attributes:
        name: Name of a shipped algorithm or of an entry point, or a reference to a class.
        options: Values by option, complete with defaults once the class is known.
        made_by: Class of the algorithm; None for code that is not loaded.
    """

    name: str = "seeupo"
    options: Mapping[str, Any] = field(default_factory=dict)
    made_by: type[Algorithm] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.made_by is None and self.name in ALGORITHMS:
            object.__setattr__(self, "made_by", ALGORITHMS[self.name])
        if self.made_by is not None:
            object.__setattr__(self, "options", options_of(self.made_by(**self.options)))

    @classmethod
    def from_algorithm(cls, algorithm: Algorithm) -> AlgorithmSettings:
        """Return the settings of an algorithm object; a class of the user's is named by module and class."""
        made_by = type(algorithm)
        shipped = next((name for name, entry in ALGORITHMS.items() if entry is made_by), None)
        name = shipped or class_reference(made_by)
        return cls(name=name, options=options_of(algorithm), made_by=made_by)

    def build(self) -> Algorithm:
        """Create the algorithm.

        Raises:
            ConfigError: Its code is not loaded.
        """
        if self.made_by is None:
            raise ConfigError([f"algorithm.name = {self.name!r}: its code is not loaded. Call `load_algorithm` first."])
        return self.made_by(**self.options)

    @property
    def needs(self) -> frozenset[Need]:
        """Features that the engine must have besides log-probs and steps."""
        return self.build().needs


def options_of(algorithm: Algorithm) -> dict[str, Any]:
    """Return the values of the options of an algorithm."""
    return {option.name: getattr(algorithm, option.name) for option in fields(cast("Any", algorithm))}


def is_reference(name: str) -> bool:
    """Return whether an algorithm is named by its class, "module:Class" or "path/to/file.py:Class"."""
    return ":" in name


def plugin_names() -> list[str]:
    """Return the names of the algorithms of installed packages; they cannot replace shipped ones."""
    return sorted({entry.name for entry in entry_points(group=GROUP)} - ALGORITHMS.keys())


def load_class(name: str) -> type[Algorithm]:
    """Import the class of an algorithm: a shipped one, one of an installed package, or a reference."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if is_reference(name):
        loaded = resolve(name, Role.ALGORITHM)
    else:
        (entry,) = entry_points(group=GROUP, name=name)
        loaded = entry.load()
    if not (declares(loaded, Role.ALGORITHM) and is_dataclass(loaded)):
        raise ConfigError([f"algorithm.name = {name!r}: expected {requirement(Role.ALGORITHM)}, as a dataclass."])
    return cast("type[Algorithm]", loaded)


def load_algorithm(settings: AlgorithmSettings, trust: Collection[str] = ()) -> AlgorithmSettings:
    """Return the settings with their class loaded and their options checked.

    Args:
        trust: References that may be imported.

    Raises:
        TrustError: The name is a reference that is not trusted.
        ConfigError: The class does not have such options, or the name is not that of a class.
    """
    from seeupo.config.reader import Reader

    if settings.made_by is not None:
        return settings
    check_trust(algorithm_code(settings), trust)
    made_by = load_class(settings.name)
    reader = Reader()
    algorithm = reader.section(made_by, settings.options, "algorithm")
    if reader.problems:
        raise ConfigError(reader.problems)
    return AlgorithmSettings(name=settings.name, options=options_of(algorithm), made_by=made_by)


def algorithm_code(settings: AlgorithmSettings) -> tuple[str, ...]:
    """Return the reference to code in the settings, if their name is one."""
    return (settings.name,) if is_reference(settings.name) else ()
