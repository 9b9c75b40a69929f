"""Consent to run code that settings name: environments and algorithms.

A recipe or a run directory may come from a stranger, so it is data: the code that it names is imported only if the user
trusts it on the command line or from Python.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from seeupo.envs.references import canonical
from seeupo.envs.registry import EnvSpec, is_reference, lookup
from seeupo.errors import UserError


@dataclass(frozen=True)
class Permissions:
    """What the user allows.

    Attributes:
        trust: Code that settings may name.
        unsandboxed: Run workers without a sandbox.
    """

    trust: tuple[str, ...] = ()
    unsandboxed: bool = False


NOTHING_ALLOWED = Permissions()


class TrustError(UserError):
    """Settings name code that the user has not trusted.

    Attributes:
        references: The code, as the settings name it.
    """

    def __init__(self, references: tuple[str, ...]) -> None:
        self.references = references
        quoted = " and ".join(repr(reference) for reference in references)
        flags = " ".join(f"--trust {reference}" for reference in references)
        super().__init__(
            f"the settings name code to run, {quoted}; it runs only with your consent. "
            f"Read the code first, then add {flags} on the command line, or trust={list(references)!r} in Python"
        )


def named_code(environment: object, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the references to code in the name and the options of an environment. Nothing is imported for it."""
    spec = lookup(environment) if isinstance(environment, str) else environment
    if not isinstance(spec, EnvSpec):
        return ()  # a factory object: its code already runs
    code = [environment] if isinstance(environment, str) and is_reference(environment) else []
    return (*code, *spec.code_in(options))


def untrusted_code(code: Collection[str], trusted: Collection[str]) -> tuple[str, ...]:
    """Return the references that are not among the trusted ones."""
    accepted = {canonical(reference) for reference in trusted}
    return tuple(reference for reference in code if canonical(reference) not in accepted)


def check_trust(code: Collection[str], trusted: Collection[str]) -> None:
    """Raise `TrustError` if settings name code that is not trusted."""
    if untrusted := untrusted_code(code, trusted):
        raise TrustError(untrusted)


def strings_in(value: Any) -> Iterator[str]:
    """Yield all strings in nested lists and tables: what the user typed may be trusted."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from strings_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_in(item)
