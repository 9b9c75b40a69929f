"""Ask for consent to run code that a recipe or run directory names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seeupo.cli.terminal import confirm, is_interactive, note
from seeupo.envs.references import canonical, locate
from seeupo.envs.trust import Permissions, TrustError, named_code, strings_in, untrusted_code


def permissions_for(
    environment: str | None, options: Mapping[str, Any], *, trust: Sequence[str], typed: Any, unsandboxed: bool
) -> Permissions:
    """Return what the user allows: references that were typed on this command line, or confirmed on the terminal.

    Args:
        environment: Name of the environment; None if there is none.
        options: Options of the environment.
        trust: Values of --trust.
        typed: Settings from the command line. Code that they name is trusted, because the user named it.
        unsandboxed: Whether workers run without a sandbox.
    """
    trusted = (*trust, *strings_in(typed))
    if environment is None:
        return Permissions(trusted, unsandboxed)
    if untrusted := untrusted_code(environment, options, trusted):
        if not is_interactive():
            raise TrustError(untrusted)
        for reference in untrusted:
            source = locate(reference)
            note(f"{reference} ({'not found' if source is None else source.path})")
        if not confirm("The files name this code. Have you read it, and shall it run?"):
            raise TrustError(untrusted)
        trusted += untrusted
    if code := named_code(environment, options):
        place = "without a sandbox" if unsandboxed else "in workers"
        note(f"trusted code, run {place}: {', '.join(map(canonical, code))}")
    return Permissions(trusted, unsandboxed)
