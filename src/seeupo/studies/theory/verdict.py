"""What is said about a claim, and how a verdict follows from what was measured."""

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
    """What a check has to do with the claim: it is what the paper says, what practice adds, or a comparison."""

    CLAIM = "claim"
    PRACTICE = "practice"
    COMPARISON = "comparison"


@dataclass(frozen=True)
class Check:
    """One statement, tested in one setting.

    Attributes:
        setting: the statement, or the update, the parameters and the problems that the claim was tested with.
        holds: whether the figures bear it out.
        figures: what was measured.
        undecided: it was not borne out, but neither was its opposite (a difference within its standard error).
        counterexample: when it does not hold, a case of it.
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
    """A claim of the paper with the checks made of it. `curves` holds series that are drawn but not judged."""

    id: int
    title: str
    claim: str
    problems: str
    checks: Sequence[Check]
    curves: dict[str, Any] = field(default_factory=dict)

    def of(self, scope: Scope) -> list[Check]:
        return [check for check in self.checks if check.scope is scope]

    @property
    def verdict(self) -> Verdict:
        """A check of the claim itself that fails is a counterexample; if none can be decided, neither can the claim.

        A check that is undecided, or that fails in a setting which practice adds, makes the claim conditional.
        Comparisons have no say.
        """
        claimed = self.of(Scope.CLAIM)
        if not all(check.holds or check.undecided for check in claimed):
            return Verdict.COUNTEREXAMPLE
        if not any(check.holds for check in claimed):
            return Verdict.UNDECIDED
        everywhere = all(check.holds for check in [*claimed, *self.of(Scope.PRACTICE)])
        return Verdict.HOLDS if everywhere else Verdict.CONDITIONAL

    @property
    def condition(self) -> str | None:
        """Where it held and where it did not; None if it held everywhere."""
        if self.verdict is Verdict.HOLDS:
            return None
        judged = [*self.of(Scope.CLAIM), *self.of(Scope.PRACTICE)]
        held = "; ".join(check.setting for check in judged if check.holds) or "nowhere"
        failed = "; ".join(check.setting for check in judged if not check.holds)
        return f"held: {held}. did not: {failed}"

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
        }
