"""Terminal output of the theory study."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from studies.theory.verdict import Check, Claim, Scope, Verdict

STYLES = {
    Verdict.HOLDS: "green",
    Verdict.CONDITIONAL: "yellow",
    Verdict.COUNTEREXAMPLE: "red",
    Verdict.UNDECIDED: "yellow",
}
ANSWERS = {"yes": "green", "?": "yellow", "no": "red"}


def show(claims: Sequence[Claim], console: Console) -> None:
    """Print each claim with its checks and counterexamples, then a summary with one line per claim."""
    for claim in claims:
        console.print()
        console.print(Text.assemble((f"{claim.id}. {claim.title}", "bold"), ": ", verdict_text(claim.verdict)))
        text = Text.assemble(f"{claim.claim}\n", (f"Measured on: {claim.problems}.", "dim"))
        console.print(Padding(text, (0, 0, 0, 3)))
        if claim.qualification:
            console.print(Padding(Text.assemble(("Condition", "yellow"), f": {claim.qualification}"), (0, 0, 0, 3)))
        console.print(Padding(checks_table(claim.checks), (0, 0, 0, 3)))
        for check in claim.checks:
            if check.scope is not Scope.COMPARISON and not check.holds and check.counterexample:
                console.print(Padding(Text.assemble(("Counterexample", "red"), f": {check.setting}"), (0, 0, 0, 3)))
                case = "\n".join(f"{name}: {short(value)}" for name, value in check.counterexample.items())
                console.print(Padding(Text(case), (0, 0, 0, 8)))
    console.print()
    console.print(summary_table(claims))


def short(value: Any) -> str:
    """Format a value as JSON with six significant digits; the JSON file has all of them."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, dict):
            return {name: rounded(part) for name, part in value.items()}
        return [rounded(part) for part in value] if isinstance(value, list) else value

    return json.dumps(rounded(value))


def verdict_text(verdict: Verdict) -> Text:
    return Text(verdict.value, style=STYLES[verdict])


def checks_table(checks: Sequence[Check]) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(ratio=3, overflow="fold")
    table.add_column(ratio=2, overflow="fold", style="dim")
    for check in checks:
        setting = Text(check.setting)
        if check.scope is not Scope.CLAIM:
            setting.append(f" ({check.scope.value})", style="dim")
        table.add_row(Text(check.answer, ANSWERS[check.answer]), setting, figures_text(check.figures))
    return table


def figures_text(figures: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.3g}"
        return str(value)

    return ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in figures.items())


def count_held(checks: Sequence[Check]) -> str:
    return f"{sum(check.holds for check in checks)} of {len(checks)}" if checks else ""


def summary_table(claims: Sequence[Claim]) -> Table:
    table = Table(title="The paper's claims, measured", title_justify="left", title_style="bold")
    table.add_column("", justify="right")
    table.add_column("claim")
    table.add_column("verdict", no_wrap=True)
    table.add_column("as claimed", justify="right", no_wrap=True)
    table.add_column("in practice", justify="right", no_wrap=True)
    for claim in claims:
        as_claimed, in_practice = (count_held(claim.in_scope(scope)) for scope in (Scope.CLAIM, Scope.PRACTICE))
        table.add_row(str(claim.id), claim.title, verdict_text(claim.verdict), as_claimed, in_practice)
    return table
