"""Checks, claims, and the rule that derives a verdict from the checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    HOLDS = "holds"
    CONDITIONAL = "holds under a condition"
    COUNTEREXAMPLE = "counterexample"
    UNDECIDED = "undecided"


class Scope(StrEnum):
    """Relation of a check to its claim: the claim as the paper states it, training in practice, or a comparison."""

    CLAIM = "claim"
    PRACTICE = "practice"
    COMPARISON = "comparison"


@dataclass(frozen=True)
class Check:
    """One statement, tested in one setting.

    Attributes:
        setting: Statement, or the update, parameters and problems on which the claim was tested.
        holds: True if the figures support the statement.
        figures: Measured values.
        scope: Relation to the claim; decides how the check enters the verdict.
        undecided: True if neither the statement nor its opposite is supported (a difference within its error).
        counterexample: A case in which the statement fails.
    """

    setting: str
    holds: bool
    figures: dict[str, Any]
    scope: Scope = Scope.CLAIM
    undecided: bool = False
    counterexample: dict[str, Any] | None = None

    @property
    def answer(self) -> str:
        return "yes" if self.holds else "?" if self.undecided else "no"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper with its checks.

    Attributes:
        id: Number of the claim.
        title: Short name.
        claim: Statement, with its source in the paper.
        problems: Problems on which it was measured.
        checks: Checks, in the order in which they are shown.
        curves: Series for the figure; they do not enter the verdict.
        qualification: Condition under which a claim with a counterexample holds after all; empty if none applies.
    """

    id: int
    title: str
    claim: str
    problems: str
    checks: Sequence[Check]
    curves: dict[str, Any] = field(default_factory=dict)
    qualification: str = ""

    def in_scope(self, scope: Scope) -> list[Check]:
        return [check for check in self.checks if check.scope is scope]

    @property
    def verdict(self) -> Verdict:
        """Derive the verdict from the checks.

        A failed check of the claim itself is a counterexample. If none of these checks could be decided, the claim is
        undecided. A check that is undecided, or that fails in practice, makes the claim conditional. Comparisons do
        not count.
        """
        claimed = self.in_scope(Scope.CLAIM)
        if not all(check.holds or check.undecided for check in claimed):
            return Verdict.COUNTEREXAMPLE
        if not any(check.holds for check in claimed):
            return Verdict.UNDECIDED
        everywhere = all(check.holds for check in [*claimed, *self.in_scope(Scope.PRACTICE)])
        return Verdict.HOLDS if everywhere else Verdict.CONDITIONAL

    @property
    def condition(self) -> str | None:
        """List where the claim held and where it failed; None if it held everywhere."""
        if self.verdict is Verdict.HOLDS:
            return None
        judged = [*self.in_scope(Scope.CLAIM), *self.in_scope(Scope.PRACTICE)]
        held = "; ".join(check.setting for check in judged if check.holds) or "nowhere"
        failed = "; ".join(check.setting for check in judged if not check.holds)
        return f"held: {held}. failed: {failed}"

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "claim": self.claim,
            "setting": self.problems,
            "figures": {
                "checks": [
                    {
                        "setting": check.setting,
                        "scope": check.scope.value,
                        "holds": None if check.undecided else check.holds,
                        "figures": check.figures,
                        "counterexample": check.counterexample,
                    }
                    for check in self.checks
                ],
                "curves": self.curves,
            },
            "verdict": self.verdict.value,
            "condition": self.condition,
            "qualification": self.qualification or None,
        }
