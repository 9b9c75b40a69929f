"""Ask for consent to what a recipe or run directory names: code to run, and a Ray cluster to join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seeupo.cli.terminal import confirm, is_interactive, note
from seeupo.envs.references import canonical, locate
from seeupo.envs.trust import Permissions, TrustError, is_cluster_address, strings_in, untrusted_code


def permissions_for(
    code: Sequence[str],
    *,
    in_process: Sequence[str] = (),
    clusters: Sequence[str] = (),
    trust: Sequence[str],
    typed: Any,
    unsandboxed: bool,
) -> Permissions:
    """Return what the user allows: what was typed on this command line, or confirmed on the terminal.

    Args:
        code: References to code that runs in workers.
        in_process: References to code that runs in this process.
        clusters: Addresses of Ray clusters to join.
        trust: Values of --trust.
        typed: Settings from the command line. What they name is trusted, because the user named it.
        unsandboxed: Whether workers run without a sandbox.
    """
    trusted = (*trust, *strings_in(typed))
    if untrusted := untrusted_code((*code, *in_process, *clusters), trusted):
        if not is_interactive():
            raise TrustError(untrusted)
        for reference in untrusted:
            if is_cluster_address(reference):
                note(f"{reference} (a Ray cluster, which can run code in this process)")
                continue
            source = locate(reference)
            note(f"{reference} ({'not found' if source is None else source.path})")
        if not confirm("The files name this. Have you read the code, is a cluster yours, and shall it run?"):
            raise TrustError(untrusted)
        trusted += untrusted
    places = {"without a sandbox" if unsandboxed else "in workers": code, "in this process": in_process}
    for place, references in places.items():
        if references:
            note(f"trusted code, run {place}: {', '.join(map(canonical, references))}")
    for address in clusters:
        note(f"trusted Ray cluster: {address}")
    return Permissions(trusted, unsandboxed)
