"""Comparisons of two methods over all settings, and verdicts that are computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, stdev
from typing import Any

from studies.credit.methods import CRITIC_ERRORS, WITH_M, WITHOUT_M
from studies.credit.problem import KINDS
from studies.credit.study import Scores, Setting

ERRORS = 3.0
"""Standard errors by which a gain must differ; three, because there are many comparisons."""


class Answer(StrEnum):
    MORE = "more"
    LESS = "less"
    SAME = "no significant difference"


class Verdict(StrEnum):
    HELPS = "helps"
    HURTS = "hurts"
    DEPENDS = "depends on the problem"
    SAME = "no significant difference"


@dataclass(frozen=True)
class Comparison:
    """The gains of J of two methods in one setting, on the same trajectories and at equal KL.

    Attributes:
        setting: The setting.
        gain: Mean gain of the first method.
        other: Mean gain of the second.
        error: Standard error of the difference, paired by group.
    """

    setting: Setting
    gain: float
    other: float
    error: float

    @property
    def answer(self) -> Answer:
        difference = self.gain - self.other
        if abs(difference) <= ERRORS * self.error:
            return Answer.SAME
        return Answer.MORE if difference > 0 else Answer.LESS

    @property
    def percent(self) -> float:
        """The first gain relative to the second, in percent."""
        return 100 * (self.gain / self.other - 1)


@dataclass(frozen=True)
class Question:
    """Whether the first of two methods gains more.

    Attributes:
        title: The question.
        first: Name of the method that is asked about.
        second: Name of the method that it is compared with.
        comparisons: One per setting that has both.
    """

    title: str
    first: str
    second: str
    comparisons: Sequence[Comparison]

    @property
    def verdict(self) -> Verdict:
        return judge(self.comparisons)

    @property
    def sentence(self) -> str:
        """The result in words."""
        return f"{self.first} against {self.second}: {summarize(self.comparisons)}."

    @property
    def by_kind(self) -> dict[str, str]:
        """The result for each kind of problem in words."""
        return {
            kind: f"{judge(found)}: {summarize(found)}"
            for kind in KINDS
            if (found := [each for each in self.comparisons if each.setting.kind == kind])
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "question": self.title,
            "first": self.first,
            "second": self.second,
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "by_kind": self.by_kind,
            "comparisons": [
                {
                    "setting": each.setting.label,
                    "gain": float(f"{each.gain:.6g}"),
                    "other": float(f"{each.other:.6g}"),
                    "standard_error": float(f"{each.error:.3g}"),
                    "answer": each.answer.value,
                }
                for each in self.comparisons
            ],
        }


def judge(comparisons: Sequence[Comparison]) -> Verdict:
    """Return the verdict: a method helps if it gains significantly more somewhere and significantly less nowhere."""
    answers = {each.answer for each in comparisons}
    if answers >= {Answer.MORE, Answer.LESS}:
        return Verdict.DEPENDS
    if Answer.MORE in answers:
        return Verdict.HELPS
    return Verdict.HURTS if Answer.LESS in answers else Verdict.SAME


def summarize(comparisons: Sequence[Comparison]) -> str:
    """Return in how many settings the gain was significantly larger and smaller, with median and extremes."""

    def extreme(answer: Answer, choose: Callable[..., Comparison]) -> str:
        found = [each for each in comparisons if each.answer is answer]
        if not found:
            return "0"
        best = choose(found, key=lambda each: each.percent)
        return f"{len(found)} (at most {best.percent:+.0f}%: {best.setting.label})"

    middle = median(each.percent for each in comparisons)
    return (
        f"larger gain in {extreme(Answer.MORE, max)} and smaller in {extreme(Answer.LESS, min)} of "
        f"{len(comparisons)} settings, median {middle:+.0f}%"
    )


def compare(results: Sequence[Scores], first: str, second: str) -> list[Comparison]:
    """Compare two methods in every setting that has both."""
    found = []
    for result in results:
        if first in result.methods and second in result.methods:
            gains, others = result.methods[first].gains, result.methods[second].gains
            differences = [gain - other for gain, other in zip(gains, others, strict=True)]
            error = stdev(differences) / len(differences) ** 0.5
            found.append(Comparison(result.setting, fmean(gains), fmean(others), error))
    return found


def questions(results: Sequence[Scores]) -> list[Question]:
    """Return every question of the study with its comparisons."""
    asked = [
        ("Does M help?", WITH_M, WITHOUT_M),
        ("Does M help in natural order?", "SeeUPO, natural", WITHOUT_M),
        ("Does M help in random order?", "SeeUPO, random", WITHOUT_M),
        ("Is reverse order better than natural order?", WITH_M, "SeeUPO, natural"),
        ("Is M better than GRPO's weights?", WITH_M, "GRPO"),
        ("Is M better than GiGPO's weights?", WITH_M, "GiGPO"),
        ("Is M better than MT-GRPO's weights?", WITH_M, "MT-GRPO"),
        *(
            (f"Is M better than {level}-level GAE, critic error {error:g}?", WITH_M, name)
            for level in ("turn", "token")
            for error in CRITIC_ERRORS
            for name in [f"PPO, {level} level, critic error {error:g}"]
        ),
    ]
    return [
        Question(title, first, second, comparisons)
        for title, first, second in asked
        if (comparisons := compare(results, first, second))
    ]
