"""`seeupo doctor`: check this machine."""

from __future__ import annotations

import sys

import click

from seeupo.cli.terminal import echo


@click.command()
def doctor() -> None:
    """Check devices, packages, backends and sandbox, and run short tests of training and sampling.

    Each line is OK, skipped (not installed) or failed, with the fix. The exit code is 1 if a check failed.
    """
    from seeupo.doctor import run_checks

    failed = 0
    for check in run_checks():
        echo(f"{check.status:<8} {check.name:<15} {check.text}{f'. Fix: {check.fix}' if check.fix else ''}")
        failed += check.status == "failed"
    echo(f"{failed} checks failed." if failed else "No check failed.")
    sys.exit(1 if failed else 0)
