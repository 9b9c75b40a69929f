"""Every method's weight per turn, scored against the true advantage on problems small enough to enumerate."""

from studies.credit.study import Scores, Setting, measure, settings
from studies.credit.verdict import Question, Verdict, questions

__all__ = ["Question", "Scores", "Setting", "Verdict", "measure", "questions", "settings"]
