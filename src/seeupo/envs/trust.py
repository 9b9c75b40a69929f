"""Consent to run code that settings name: environments, algorithms, and Ray clusters, which can run code here.

A recipe or a run directory may come from a stranger, so it is data: the code that it names is imported, and the cluster
that it names joined, only if the user trusts it on the command line or from Python.
"""

from __future__ import annotations

import re
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
        trust: Code and addresses of Ray clusters that settings may name.
        unsandboxed: Run workers without a sandbox.
    """

    trust: tuple[str, ...] = ()
    unsandboxed: bool = False


NOTHING_ALLOWED = Permissions()
CLUSTER_ADDRESS = re.compile(r"auto|([\w.-]+|\[[\da-fA-F:.]+\]):\d{1,5}", re.ASCII)


class TrustError(UserError):
    """Settings name code, or a Ray cluster, that the user has not trusted.

    Attributes:
        references: The code and the cluster's address, as the settings name them.
    """

    def __init__(self, references: tuple[str, ...]) -> None:
        self.references = references
        code = " and ".join(repr(reference) for reference in references if not is_cluster_address(reference))
        cluster = " and ".join(repr(reference) for reference in references if is_cluster_address(reference))
        names = [f"code to run, {code}"] if code else []
        names += [f"a Ray cluster to join, {cluster}, which can run code in this process"] if cluster else []
        checks = (["read the code"] if code else []) + (["make sure that the cluster is yours"] if cluster else [])
        flags = " ".join(f"--trust {reference}" for reference in references)
        super().__init__(
            f"the settings name {', and '.join(names)}; this needs your consent. First {' and '.join(checks)}, then "
            f"add {flags} on the command line, or trust={list(references)!r} in Python"
        )


def is_cluster_address(text: str) -> bool:
    """Return whether a text is "auto" or host:port, which no reference to code is."""
    return CLUSTER_ADDRESS.fullmatch(text) is not None


def named_code(environment: object, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the references to code in the name and the options of an environment. Nothing is imported for it."""
    spec = lookup(environment) if isinstance(environment, str) else environment
    if not isinstance(spec, EnvSpec):
        return ()  # a factory object: its code already runs
    code = [environment] if isinstance(environment, str) and is_reference(environment) else []
    return (*code, *spec.code_in(options))


def untrusted_code(code: Collection[str], trusted: Collection[str]) -> tuple[str, ...]:
    """Return the references and addresses that are not among the trusted ones."""
    accepted = {canonical(reference) for reference in trusted}
    return tuple(reference for reference in code if canonical(reference) not in accepted)


def check_trust(code: Collection[str], trusted: Collection[str]) -> None:
    """Raise `TrustError` if settings name code, or the address of a cluster, that is not trusted."""
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
