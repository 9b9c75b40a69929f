"""Terminal output of the credit study."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from studies.credit.problem import KINDS
from studies.credit.study import Scores, Setting
from studies.credit.verdict import Question

MEASURES = ("sign", "correlation", "sign_after", "correlation_after", "bias", "variance", "gain")


def score_rows(result: Scores) -> list[list[str]]:
    """Return the scores of all methods in one setting as a table with a header; a dash has no value."""
    rows = [["method", *(name.replace("_", " ") for name in MEASURES)]]
    for method, score in result.methods.items():
        values = [getattr(score, name) for name in MEASURES]
        rows.append([method, *("-" if value is None else f"{value:.3f}" for value in values)])
    return rows


def question_rows(asked: Sequence[Question]) -> list[list[str]]:
    """Return the verdicts as a table with a header."""
    rows = [[question.title, question.verdict.value, question.sentence] for question in asked]
    return [["question", "verdict", "gain of J at equal KL"], *rows]


def show(results: Sequence[Scores], asked: Sequence[Question], console: Console) -> None:
    """Print the scores in the default setting of each kind of problem, then the verdicts."""
    defaults = {Setting(kind) for kind in KINDS}
    for result in results:
        if result.setting in defaults:
            console.print(_table(score_rows(result), result.setting.label))
    console.print(_table(question_rows(asked), "Verdicts"))


def _table(rows: Sequence[Sequence[str]], title: str) -> Table:
    head, *body = rows
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in body:
        table.add_row(*row)
    return table
