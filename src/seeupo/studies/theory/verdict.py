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


@dataclass(frozen=True)
class Check:
    """One statement, tested in one setting.

    Attributes:
        setting: the update, the parameters and the problems that the statement was tested with.
        holds: whether the figures bear it out.
        figures: what was measured.
        claimed: whether the paper's claim covers this setting; otherwise it is a setting that practice uses.
        undecided: it was not borne out, but neither was its opposite (a difference within its standard error).
        counterexample: when it does not hold, one case in full.
    """

    setting: str
    holds: bool
    figures: dict[str, Any]
    claimed: bool = True
    undecided: bool = False
    counterexample: dict[str, Any] | None = None


@dataclass(frozen=True)
class Claim:
    """A claim of the paper with the checks made of it. `curves` holds series that are drawn but not judged."""

    id: int
    title: str
    claim: str
    problems: str
    checks: Sequence[Check]
    curves: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """A claimed check that fails is a counterexample; one that fails elsewhere, or is undecided, a condition."""
        if not all(check.holds or check.undecided for check in self.checks if check.claimed):
            return Verdict.COUNTEREXAMPLE
        return Verdict.HOLDS if all(check.holds for check in self.checks) else Verdict.CONDITIONAL

    @property
    def condition(self) -> str | None:
        """Where it held and where it did not; None if it held everywhere."""
        if self.verdict is Verdict.HOLDS:
            return None
        held = "; ".join(check.setting for check in self.checks if check.holds) or "nowhere"
        failed = "; ".join(check.setting for check in self.checks if not check.holds)
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
                        "part_of_the_claim": check.claimed,
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
