"""Measured claims as text for a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from seeupo.studies.theory.verdict import Check, Claim, Verdict

STYLES = {Verdict.HOLDS: "green", Verdict.CONDITIONAL: "yellow", Verdict.COUNTEREXAMPLE: "red"}


def show(claims: Sequence[Claim], console: Console) -> None:
    """Each claim with its checks and, in full, its counterexamples; then one line per claim."""
    for claim in claims:
        console.print()
        console.print(Text.assemble((f"{claim.id}. {claim.title}", "bold"), ": ", verdict_text(claim.verdict)))
        console.print(Padding(f"{claim.claim}\n[dim]Measured on: {claim.problems}.[/dim]", (0, 0, 0, 3)))
        console.print(Padding(checks_table(claim.checks), (0, 0, 0, 3)))
        for check in claim.checks:
            if check.claimed and not check.holds and check.counterexample:
                console.print(Padding(f"[red]Counterexample[/red], {check.setting}:", (0, 0, 0, 3)))
                console.print(Padding(Text(json.dumps(check.counterexample, indent=2)), (0, 0, 0, 5)))
    console.print()
    console.print(summary_table(claims))


def verdict_text(verdict: Verdict) -> Text:
    return Text(verdict.value, style=STYLES[verdict])


def checks_table(checks: Sequence[Check]) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(ratio=3, overflow="fold")
    table.add_column(ratio=2, overflow="fold", style="dim")
    for check in checks:
        mark = Text("yes", "green") if check.holds else Text("?", "yellow") if check.undecided else Text("no", "red")
        scope = "" if check.claimed else " [dim](beyond the claim)[/dim]"
        table.add_row(mark, check.setting + scope, figures_text(check.figures))
    return table


def figures_text(figures: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.3g}"
        return str(value)

    return ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in figures.items())


def summary_table(claims: Sequence[Claim]) -> Table:
    table = Table(title="The paper's claims, measured", title_justify="left", title_style="bold")
    table.add_column("", justify="right")
    table.add_column("claim")
    table.add_column("verdict", no_wrap=True)
    table.add_column("checks held", justify="right", no_wrap=True)
    for claim in claims:
        held = sum(check.holds for check in claim.checks)
        table.add_row(str(claim.id), claim.title, verdict_text(claim.verdict), f"{held} of {len(claim.checks)}")
    return table
